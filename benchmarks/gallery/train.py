"""Trains one of the gallery's tabular models on a data set that scikit-learn ships.

    python benchmarks/gallery/train.py digits.ubj

The name of the file says which: data set and library.
"""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier

SEED = 0


def xgboost_classes(file: pathlib.Path) -> None:
    xgboost = importlib.import_module("xgboost")

    features, labels = datasets.load_digits(return_X_y=True)
    model = xgboost.XGBClassifier(n_estimators=100, max_depth=6, n_jobs=1, random_state=SEED)
    model.fit(features, labels).save_model(file)


def xgboost_value(file: pathlib.Path) -> None:
    xgboost = importlib.import_module("xgboost")

    features, values = datasets.load_diabetes(return_X_y=True)
    model = xgboost.XGBRegressor(n_estimators=200, max_depth=4, n_jobs=1, random_state=SEED)
    model.fit(features, values).save_model(file)


def lightgbm_classes(file: pathlib.Path) -> None:
    lightgbm = importlib.import_module("lightgbm")

    features, labels = datasets.load_wine(return_X_y=True)
    model = lightgbm.LGBMClassifier(n_estimators=200, n_jobs=1, random_state=SEED, verbose=-1)
    model.fit(features, labels).booster_.save_model(file)


def catboost_classes(file: pathlib.Path) -> None:
    catboost = importlib.import_module("catboost")

    features, labels = datasets.load_breast_cancer(return_X_y=True)
    model = catboost.CatBoostClassifier(
        iterations=300, thread_count=1, random_seed=SEED, verbose=False, allow_writing_files=False
    )
    model.fit(features, labels).save_model(str(file))


def forest(file: pathlib.Path) -> None:
    skops_io = importlib.import_module("skops.io")

    features, labels = datasets.load_digits(return_X_y=True)
    model = RandomForestClassifier(n_estimators=200, n_jobs=1, random_state=SEED)
    skops_io.dump(model.fit(features, labels), file)


FILES: dict[str, Callable[[pathlib.Path], Any]] = {
    "digits.ubj": xgboost_classes,
    "diabetes.json": xgboost_value,
    "wine.txt": lightgbm_classes,
    "cancer.cbm": catboost_classes,
    "digits.skops": forest,
}


def main() -> int:
    if len(sys.argv) != 2 or pathlib.Path(sys.argv[1]).name not in FILES:
        print(f"usage: train.py [FOLDER/]NAME, NAME one of {', '.join(FILES)}", file=sys.stderr)
        return 2
    file = pathlib.Path(sys.argv[1])
    try:
        FILES[file.name](file)
    except ImportError as error:
        print(f"{error.name} is not installed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
