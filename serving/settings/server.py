"""Settings of the server: listeners, access, limits, folders."""

from __future__ import annotations

import dataclasses
from typing import Literal

from serving.settings.setting import setting


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Listeners and their limits, which are fixed while the server runs."""

    host: str = setting("127.0.0.1", live=False)
    """Address of the inference port. Default loopback: network access is a deliberate choice."""
    port: int = setting(8000, "", 0, 65_535, live=False)
    """Inference port (HTTP); 0 takes a free one."""
    grpc_port: int | Literal["auto"] | None = setting("auto", "", 0, 65_535, live=False)
    """gRPC inference port, on the same address; 0 takes a free one, none turns it off.

    Default `auto`: the usual 8001 if `port` is 8000; a free one if it is 0; otherwise off. If 8001
    is in use, the server logs that and runs without gRPC.
    """
    gateways: int = setting(1, "processes", 1, 64, live=False)
    """Gateway processes that share the inference ports, each with replicas of its own.

    `replica.count` is for all of them: it is dealt out, at least one replica each. Their admin ports
    are numbered on from `admin_port`, and metrics are on those only. Default 1: one gateway keeps
    about a core busy; take more where it is the limit, or to survive the end of one (gateways.md).
    """
    admin_host: str = setting("127.0.0.1", live=False)
    """Address of the admin port, which runs code.

    Default loopback; any other address needs a token and TLS.
    """
    admin_port: int = setting(8002, "", 0, 65_535, live=False)
    """Port for health, metrics, live settings; 0, the default with `port` 0, takes a free one."""
    admin_access: Literal["token", "open"] = setting("token", live=False)
    """Whether admin requests need `Authorization: Bearer TOKEN`; health requests never do.

    `token`: yes. If no token is given, the server generates one in a file that only its user can
    read, named in the `ready` line (`admin_token_file`), and metrics are open. `open`
    (`--no-admin-token`): no. Default token: the admin port runs code as the server's user, and all
    local users reach loopback.
    """
    admin_token_file: str | None = setting(None, live=False)
    """File with the admin port's token, at least 16 characters; or set LUTHIER_ADMIN_TOKEN.

    Default none: a token is generated, on loopback only.
    """
    max_body_bytes: int = setting(64 * 1024 * 1024, "bytes", 1024, 2**31 - 1, live=False)
    """Maximum size of a request body; a larger one gets 413. Default 64 MiB, as in Triton."""
    max_json_bytes: int = setting(4 * 1024 * 1024, "bytes", 1024, 2**31 - 1, live=False)
    """Maximum JSON in a request that the server itself parses, after decompression; more gets 413.

    Replicas parse large numeric arrays, up to `max_body_bytes`. Parsing in the server blocks other
    requests for some 10 ms per MiB. Default 4 MiB: a photograph of 3 MB in base64.
    """
    max_connections: int = setting(8192, "connections", 1, 1_000_000, live=False)
    """Maximum number of client connections to the inference ports together.

    Further ones get 503 with Retry-After (HTTP/2: GOAWAY) and are closed. The limit on open files
    (`ulimit -n`) is raised to fit if possible. Default 8192: ten times what one server's clients
    keep open, at some kilobytes each.
    """
    max_connections_per_client: int | None = setting(None, "connections", 1, 1_000_000, live=False)
    """Maximum connections per client address (IPv6: per 64-bit prefix); loopback is exempt.

    With TLS, they count from the first packet. Default none: a quarter of `max_connections`, so
    that no client shuts out the others; raise it if all clients come through one remote proxy.
    """
    max_buffered_mb: int = setting(1024, "MiB", 1, 4_194_304, live=False)
    """Maximum size of the requests buffered on the inference ports.

    These are bodies that are arriving, queued (with large headers) or decompressed; bodies of 64
    KiB or more until answered; and unread responses (not over TLS). Beyond the limit, growing
    bodies get 503 with Retry-After (RESOURCE_EXHAUSTED). At least twice `max_body_bytes`. Default 1
    GiB: sixteen of the largest bodies.
    """
    token_file: str | None = setting(None, live=False)
    """File with the token for inference requests, at least 16 characters; or set LUTHIER_TOKEN.

    Requests without `Authorization: Bearer TOKEN` get 401. Default none: the port is open.
    """
    tls_certificate: str | None = setting(None, live=False)
    """File with the inference ports' certificates (PEM), for `tls_key`. Default none: no TLS."""
    tls_key: str | None = setting(None, live=False)
    """File with the private key (PEM) of `tls_certificate`."""
    cors: str | None = setting(None, live=False)
    """Origins whose scripts may call the inference port, or `*`.

    For example `https://a.example,https://b.example`. Default none: browsers hide responses from
    scripts, and the server rejects their state-changing requests.
    """
    hosts: str | None = setting(None, live=False)
    """Further host names of the ports, such as `models.example,10.0.0.7`, or `*` for any.

    Loopback ports accept these names, `localhost` and loopback addresses in `Host`. Others get 403,
    to stop web pages whose site resolves to this machine (DNS rebinding). If set, network ports
    check `Host` too. Default none: the server does not know a network port's names.
    """
    gzip_min_bytes: int | None = setting(65_536, "bytes", 0, 2**31 - 1, live=False)
    """Minimum length of responses compressed on request (`Accept-Encoding: gzip` or `deflate`).

    Over gRPC, clients request it by compressing their messages. Null: never. Default 64 KiB:
    shorter responses are faster uncompressed.
    """
    timing: Literal["none", "header"] = setting("none", live=False)
    """Whether inference responses report stage durations in `Server-Timing`.

    Default none: they reveal other clients' load.
    """
    metrics: Literal["inference", "admin"] = setting("inference", live=False)
    """Where metrics and model statistics are shown; they reveal what others request.

    `inference`: also on the inference ports. `admin`: metrics on the admin port only, statistics
    nowhere. Default inference: clients of TensorFlow Serving, Triton and Clipper expect it.
    """
    model_control: Literal["none", "explicit"] = setting("none", live=False)
    """Whether inference clients may load and unload models.

    `explicit`: by name, through Triton's repository calls. Default none: a client need not be an
    operator.
    """
    state_dir: str | None = setting(None, live=False)
    """Folder that saves live changes and what selection policies learn.

    Models, versions, applications, links and live settings survive restarts, even `kill -9`. For
    one server at a time. Default none: nothing is saved.
    """
    state_store: str | None = setting(None, live=False)
    """Redis server of what gateways on several machines share, a group for each database.

    That is what selection policies learn and, without `state_dir`, all live changes (gateways.md).
    `redis://HOST:6379/0`, `rediss://HOST:6379/0` (TLS) or `unix:///PATH/OF/SOCKET`; needs `pip
    install '.[redis]'` in a clone. The password is in LUTHIER_STATE_STORE_PASSWORD, as anyone who
    may read the settings would see it here. Default none: SQLite in `state_dir`, or else memory.
    """
    profiles_dir: str | None = setting(None, live=False)
    """Folder that saves the profiles of models that share replicas (docs/schedulers.md).

    For one server at a time. Default none: `state_dir`; without it, each start profiles the models.
    """
    repository_poll_s: float = setting(1.0, "s", 0.05, 3600, live=False)
    """Time between scans of the model repository. Default 1 s, as in TensorFlow Serving.

    A version is taken up once two scans see the same files.
    """
    repository_loaded_versions: int = setting(1, "versions", 1, 100, live=False)
    """How many newest versions of a repository model stay loaded. Default 1: saves memory."""
    drain_delay_s: float = setting(0.0, "s", 0, 3600, live=False)
    """Time after SIGTERM during which the server still accepts requests, but says it is not ready.

    In it, a balancer sees that and sends new requests elsewhere; it then takes `drain_s` to end.
    Default 0: nobody is between the server and its clients. Behind one, the time of two of its
    health checks.
    """
    drain_s: float = setting(20.0, "s", 0, 3600, live=False)
    """Maximum time to finish in-flight requests, from SIGTERM or the end of `drain_delay_s`.

    Default 20 s.
    """
