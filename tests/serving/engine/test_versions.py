"""Which version a name means: versions, labels, shares, shadows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.versions import VersionRegistry
from serving.errors import InvalidRequest, UnknownLabel, UnknownModel


@pytest.fixture
def catalogue():
    made = VersionRegistry()
    for version in ("1", "2", "3"):
        made.add("m", version, f"m{version}", current=version == "1")
    return made


def get(catalogue, version=None, draw=0.0):
    return catalogue.entry("m").of(version, draw)


def test_a_request_without_a_version_gets_the_current_one(catalogue):
    """The first version is current; a later one when it is made so."""
    assert get(catalogue) == "m1"
    catalogue.set_current("m", "2")
    assert get(catalogue) == "m2"
    assert catalogue.entry("m").previous == "1"
    assert get(catalogue, "1") == "m1"


def test_labels_mean_versions(catalogue):
    """A label stays where it was set; `stable` follows the current version until it is set."""
    assert get(catalogue, "stable") == "m1"
    catalogue.set_current("m", "2")
    assert get(catalogue, "stable") == "m2"
    catalogue.set_label("m", "canary", "3")
    catalogue.set_label("m", "stable", "1")
    assert get(catalogue, "canary") == "m3"
    assert get(catalogue, "stable") == "m1"
    catalogue.set_label("m", "canary", None)
    with pytest.raises(UnknownModel, match="version 'canary'"):
        get(catalogue, "canary")


@given(
    shares=st.dictionaries(st.sampled_from(["1", "2", "3"]), st.floats(0, 1 / 3), max_size=3),
    count=st.just(2000),
)
def test_shares_are_kept(shares, count):
    """Over evenly spread draws each version gets its share, the current one the rest as well."""
    catalogue = VersionRegistry()
    for version in ("1", "2", "3"):
        catalogue.add("m", version, version, current=version == "1")
    catalogue.set_shares("m", shares)
    seen = [get(catalogue, None, (i + 0.5) / count) for i in range(count)]
    rest = 1.0 - sum(shares.values())
    for version in ("1", "2", "3"):
        wanted = shares.get(version, 0.0) + (rest if version == "1" else 0.0)
        assert abs(seen.count(version) / count - wanted) <= 3 / count
    assert get(catalogue, "2", 0.0) == "2"


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ({"1": 0.7, "2": 0.4}, "1.1 together"),
        ({"1": -0.1}, "expected 0 to 1"),
        ({"1": float("nan")}, "expected 0 to 1"),
        ({"1": 10**400}, "is 10+, expected 0 to 1"),
        ({"1": -(10**400)}, "expected 0 to 1"),
    ],
)
def test_wrong_shares_change_nothing(catalogue, shares, text):
    """One line, and the traffic goes where it went."""
    with pytest.raises(InvalidRequest, match=text):
        catalogue.set_shares("m", shares)
    assert catalogue.entry("m").shares == {}


def test_a_version_in_use_is_not_removed(catalogue):
    """Not the current one beside others, nor one with a share; labels and shadow go with a version."""
    with pytest.raises(InvalidRequest, match="current one"):
        catalogue.remove("m", "1")
    catalogue.set_shares("m", {"2": 0.1})
    with pytest.raises(InvalidRequest, match="share"):
        catalogue.remove("m", "2")
    catalogue.set_shares("m", {})
    catalogue.set_label("m", "canary", "2")
    catalogue.set_shadow("m", "2")
    assert catalogue.remove("m", "2") == "m2"
    assert catalogue.entry("m").labels == {}
    assert catalogue.entry("m").shadow is None
    catalogue.remove("m", "3")
    catalogue.remove("m", "1")
    with pytest.raises(UnknownModel):
        catalogue.entry("m")


def test_a_new_current_version_ends_a_split(catalogue):
    """Promoting a canary sends everything to it."""
    catalogue.set_shares("m", {"2": 0.1})
    catalogue.set_shadow("m", "3")
    catalogue.set_current("m", "3")
    assert [get(catalogue, None, draw) for draw in (0.0, 0.5, 0.99)] == ["m3"] * 3
    assert catalogue.entry("m").shadow is None
    with pytest.raises(InvalidRequest, match="cannot be a shadow"):
        catalogue.set_shadow("m", "3")


def test_what_is_not_there_is_named(catalogue):
    """The known ones are listed, the nearest is offered."""
    with pytest.raises(UnknownModel, match="known: m"):
        catalogue.entry("n")
    catalogue.set_label("m", "canary", "3")
    with pytest.raises(UnknownModel, match=r"version '9' is not known \(.*: 1, 2, 3, canary\)"):
        catalogue.set_current("m", "9")
    with pytest.raises(UnknownModel, match="version 'canry' is not known, did you mean 'canary'"):
        catalogue.set_current("m", "canry")
    with pytest.raises(UnknownLabel, match=r"no label 'canry', did you mean.*: canary\)"):
        catalogue.set_label("m", "canry", None)
    with pytest.raises(InvalidRequest, match="already has a version '1'"):
        catalogue.add("m", "1", "again", current=False)
    with pytest.raises(InvalidRequest, match="cannot be a label"):
        catalogue.set_label("m", "1", "2")


def changed(catalogue):
    """Current 2, before it 1, a label, a split and a shadow."""
    catalogue.set_current("m", "2")
    catalogue.set_label("m", "canary", "3")
    catalogue.set_shares("m", {"3": 0.25})
    catalogue.set_shadow("m", "1")
    return catalogue.entry("m").as_json()


def fresh(*versions, current):
    made = VersionRegistry()
    for version in versions:
        made.add("m", version, version, current=version == current)
    return made


def test_what_was_decided_comes_back(catalogue):
    """All of it where the versions are those of then."""
    past = changed(catalogue)
    later = fresh("3", "1", "2", current="3")
    later.restore("m", past)
    now = later.entry("m").as_json()
    assert {**now, "versions": past["versions"]} == past


@pytest.mark.parametrize(
    ("versions", "start", "current", "previous", "labels", "shares", "shadow"),
    [
        # a version that is gone takes what speaks of it along; the one before becomes current
        (("1", "3"), "3", "1", None, {"canary": "3"}, {"3": 0.25}, None),
        (("1", "2"), "1", "2", "1", {}, {}, "1"),
        (("3",), "3", "3", None, {"canary": "3"}, {"3": 0.25}, None),
        # one that was not there then is newer than what was decided
        (("1", "2", "3", "4"), "4", "4", "1", {"canary": "3"}, {}, "1"),
    ],
)
def test_what_was_decided_holds_as_far_as_the_versions_are_there(
    catalogue, versions, start, current, previous, labels, shares, shadow
):
    """Nothing speaks of a version that is not there."""
    later = fresh(*versions, current=start)
    later.restore("m", changed(catalogue))
    assert later.entry("m").as_json() == {
        "current": current,
        "previous": previous,
        "labels": labels,
        "shares": shares,
        "shadow": shadow,
        "versions": list(versions),
    }
