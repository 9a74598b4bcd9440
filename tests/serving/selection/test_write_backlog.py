"""Laws of what waits to be written."""

from hypothesis import given
from hypothesis import strategies as st

from serving.selection.write_backlog import PIECE, PIECE_BYTES, WriteBacklog

SIZES = st.lists(st.sampled_from((1, 1000, PIECE_BYTES // 3, PIECE_BYTES, 3 * PIECE_BYTES)))


@given(sizes=SIZES, copies=st.sampled_from((1, 40)), written=st.integers(0, 5))
def test_all_is_written_in_order_and_in_small_pieces(sizes, copies, written):
    """A piece that is written goes, and what comes meanwhile stays."""
    sizes *= copies
    backlog = WriteBacklog(capacity_bytes=2**40)
    for key, size in enumerate(sizes):
        backlog.put(key, f"item {key}", size)
    pieces = backlog.pieces()
    flat = {key: item for piece in pieces for key, item in piece.items()}
    assert list(flat.items()) == [(key, f"item {key}") for key in range(len(sizes))]
    for piece in pieces:
        assert 1 <= len(piece) <= PIECE
        assert sum(sizes[key] for key in list(piece)[:-1]) < PIECE_BYTES
    backlog.put(-1, "meanwhile", 7)
    gone = [key for piece in pieces[:written] for key in piece]
    for _ in range(2):
        backlog.discard(gone)
        assert list(backlog.keys()) == [*range(len(gone), len(sizes)), -1]
        assert backlog.bytes == sum(sizes[len(gone) :]) + 7


def test_a_backlog_is_bounded_by_number_and_bytes():
    """Whoever adds asks before; an item put again counts once."""
    backlog = WriteBacklog(capacity=3, capacity_bytes=100)
    backlog.put(1, "one", 60)
    backlog.put(1, "one", 50)
    assert (len(backlog), backlog.bytes, 1 in backlog) == (1, 50, True)
    assert backlog.fits(50)
    assert not backlog.fits(51)
    backlog.put(2, "two", 0)
    backlog.put(3, "three", 0)
    assert not backlog.fits(0)
    backlog.drop_oldest()
    assert list(backlog.keys()) == [2, 3]
