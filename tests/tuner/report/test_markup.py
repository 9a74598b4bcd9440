import html

from hypothesis import given
from hypothesis import strategies as st

from tuner.report.markup import Markup, bullets, element, join

words = st.text(st.characters(exclude_categories=["Cs", "Cc"]))


@given(text=words, value=words)
def test_text_and_attributes_come_back_as_they_were(
    text,
    value,
):
    """Whatever the text, it can be read back and adds no tag and no attribute."""
    made = element("p", text, title=value)
    inner = made.removeprefix('<p title="').removesuffix("</p>")
    attribute, _, content = inner.partition('">')
    assert "<" not in attribute + content
    assert '"' not in attribute
    assert (html.unescape(attribute), html.unescape(content)) == (value, text)


def test_markup_nests_and_none_is_left_out():
    """Markup goes in as it is; None leaves no trace."""
    inner = element("b", "x<y")
    assert element("p", inner, None, " & ", hidden=True, title=None) == (
        "<p hidden><b>x&lt;y</b> &amp; </p>"
    )


def test_names_of_attributes_are_translated():
    """`class_` is class, `data_value` is data-value."""
    assert element("td", 1, class_="n", data_value=2) == '<td class="n" data-value="2">1</td>'


def test_void_elements_have_no_end():
    """A line break is one tag."""
    assert join(["a", element("br"), "b"]) == "a<br>b"


def test_an_empty_list_is_nothing():
    """No items, no list."""
    assert bullets([]) is None
    assert bullets(["a"]) == Markup("<ul><li>a</li></ul>")
