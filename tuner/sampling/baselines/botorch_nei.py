"""BoTorch's `SingleTaskGP` with log noisy expected improvement (extra `benchmarks`)."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import numpy as np

from tuner.sampling.arrays import Array
from tuner.sampling.baselines.external_sampler import is_too_early, observations
from tuner.sampling.candidate_sampler import CandidateSampler, Proposal, SamplerContext

DRAWS = 128
TOGETHER = 512


class BotorchSampler(CandidateSampler):
    """Sampler with BoTorch's default process and noisy expected improvement."""

    def propose(self, context: SamplerContext) -> Proposal:
        """Propose at random first, then by noisy expected improvement."""
        if is_too_early(context):
            return context.at_random()
        vectors, targets = observations(context)
        knobs = context.candidates.vectors[:, : context.candidates.design_width]
        among = context.not_lost
        worth = log_noisy_improvement(vectors, targets, knobs[among], context.rng)
        chosen = context.candidates.configurations[int(among[int(np.argmax(worth))])]
        return Proposal(
            configuration=chosen,
            origin="replicate" if chosen in context.history.seen else "guided",
        )


def log_noisy_improvement(
    vectors: Array, targets: Array, at: Array, rng: np.random.Generator
) -> Array:
    """Return the log expected improvement (m,) at points (m, d), given data (n, d) and (n,)."""
    seed = int(rng.integers(2**31 - 1))
    with warnings.catch_warnings():
        # Warnings of imports, of repeated fits, and of equal targets, which cannot be standardised.
        warnings.simplefilter("ignore")
        # An optional dependency, and slow to import.
        import torch  # noqa: PLC0415
        from botorch.acquisition.logei import qLogNoisyExpectedImprovement  # noqa: PLC0415
        from botorch.fit import fit_gpytorch_mll  # noqa: PLC0415
        from botorch.models import SingleTaskGP  # noqa: PLC0415
        from botorch.sampling.normal import SobolQMCNormalSampler  # noqa: PLC0415
        from gpytorch.mlls import ExactMarginalLogLikelihood  # noqa: PLC0415

        with _alone(torch), torch.random.fork_rng(devices=[]):
            inputs, outputs = torch.tensor(vectors), -torch.tensor(targets)[:, None]
            torch.manual_seed(seed)
            model = SingleTaskGP(inputs, outputs)
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            worth = qLogNoisyExpectedImprovement(
                model,
                X_baseline=inputs,
                sampler=SobolQMCNormalSampler(torch.Size([DRAWS]), seed=seed),
                prune_baseline=True,
            )
            with torch.no_grad():
                parts = [worth(part[:, None, :]) for part in torch.tensor(at).split(TOGETHER)]
            return np.asarray(torch.cat(parts).numpy(), dtype=float)


@contextlib.contextmanager
def _alone(torch: object) -> Iterator[None]:
    before = torch.get_num_threads()  # type: ignore[attr-defined]
    torch.set_num_threads(1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_num_threads(before)  # type: ignore[attr-defined]
