"""Where training scripts write: a model into the package and its record beside the script, or both elsewhere."""

from __future__ import annotations

import argparse
import pathlib

from serving.zoo import bundled
from zoo import places

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_a_model_is_written_into_the_package_and_its_record_beside_the_script():
    options = places.parsed(argparse.ArgumentParser(), "resnet", [])
    assert options.out == bundled.FOLDER / "resnet" == ROOT / "serving" / "zoo" / "resnet"
    assert options.record == ROOT / "zoo" / "resnet"


def test_a_model_that_is_only_tried_has_its_record_with_it(tmp_path):
    options = places.parsed(argparse.ArgumentParser(), "resnet", ["--out", str(tmp_path)])
    assert options.out == options.record == tmp_path


def test_options_of_the_script_itself_stay():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    assert places.parsed(parser, "gan", ["--steps", "3"]).steps == 3
