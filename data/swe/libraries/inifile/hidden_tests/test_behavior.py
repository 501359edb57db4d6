import pytest
from inifile import Document, IniError, dumps, loads


def test_keys_before_the_first_section() -> None:
    document = loads("x = 1\n[a]\nx = 2\n")
    assert document.get("", "x") == "1"
    assert document.get("a", "x") == "2"
    assert document.sections() == ["a"]


def test_the_first_separator_counts() -> None:
    document = loads("a = b:c\nurl: http://x=y\n")
    assert document.get("", "a") == "b:c"
    assert document.get("", "url") == "http://x=y"


def test_empty_values() -> None:
    document = loads("a =\nb = # nothing\n")
    assert document.get("", "a") == ""
    assert document.get("", "b") == ""


def test_comment_behind_a_value_needs_a_blank() -> None:
    document = loads("color = #fff # white\nanchor = page#top\nsemi = a;b ; c\n")
    assert document.get("", "anchor") == "page#top"
    assert document.get("", "semi") == "a;b"
    assert document.get("", "color") == ""


def test_names_in_any_case() -> None:
    document = loads("[Main]\nKey = 1\nkey = 2\n")
    assert document.get("MAIN", "KEY") == "2"
    assert document.sections() == ["Main"]
    assert document.keys("main") == ["Key"]


def test_a_section_that_comes_twice() -> None:
    document = loads("[a]\nx = 1\n[b]\ny = 2\n[A]\nz = 3\n")
    assert document.sections() == ["a", "b"]
    assert document.keys("a") == ["x", "z"]


def test_sections_with_blanks_and_comments() -> None:
    document = loads("[ a b ] # note\nx = 1\n")
    assert document.sections() == ["a b"]
    assert document.get("a b", "x") == "1"


def test_bad_sections() -> None:
    with pytest.raises(IniError, match="line 1"):
        loads("[a\n")
    with pytest.raises(IniError, match="line 2"):
        loads("x = 1\n[]\n")
    with pytest.raises(IniError):
        loads("[ ]\n")
    with pytest.raises(IniError):
        loads("[a] x = 1\n")


def test_continued_lines() -> None:
    document = loads("[a]\nx = one\n    two\n\n  three # comment\ny = 1\n")
    assert document.get("a", "x") == "one two three"
    assert document.get("a", "y") == "1"


def test_continued_empty_value() -> None:
    assert loads("x =\n  one\n  two\n").get("", "x") == "one two"


def test_continuation_needs_a_value_above() -> None:
    with pytest.raises(IniError, match="line 2"):
        loads("[a]\n  x = 1\n")
    with pytest.raises(IniError, match="line 4"):
        loads("[a]\nx = 1\n[b]\n  more\n")


def test_quoted_values_are_kept() -> None:
    document = loads('a = "  x # y ; z "  # comment\nb = "${a}"\nc = ""\n')
    assert document.get("", "a") == "  x # y ; z "
    assert document.get("", "b") == "${a}"
    assert document.get("", "c") == ""


def test_escapes_in_quotes() -> None:
    document = loads(r'a = "say \"hi\"\n\tnow \\ then"')
    assert document.get("", "a") == 'say "hi"\n\tnow \\ then'
    with pytest.raises(IniError, match="unknown escape"):
        loads(r'a = "\q"')


def test_quotes_that_do_not_end() -> None:
    with pytest.raises(IniError, match="does not end"):
        loads('a = "open\n')
    with pytest.raises(IniError, match="continued"):
        loads('a = "x"\n  y\n')


def test_missing_separator_or_key() -> None:
    with pytest.raises(IniError, match="line 3"):
        loads("\n# c\nword\n")
    with pytest.raises(IniError, match="without a key"):
        loads("= 3\n")


def test_references_prefer_their_own_section() -> None:
    document = loads("x = top\n[a]\nx = own\ny = ${x}\n[b]\ny = ${x}\nz = ${a:y}!\n")
    assert document.get("a", "y") == "own"
    assert document.get("b", "y") == "top"
    assert document.get("b", "z") == "own!"


def test_references_of_references() -> None:
    document = loads("[a]\nx = 1\ny = ${x}2\nz = ${y}3${X}\n[b]\nw = ${A:z}\n")
    assert document.get("a", "z") == "1231"
    assert document.get("b", "w") == "1231"


def test_references_are_resolved_where_they_are_written() -> None:
    document = loads("[a]\nhome = /a\npath = ${home}/x\n[b]\nhome = /b\npath = ${a:path}\n")
    assert document.get("b", "path") == "/a/x"


def test_dollars() -> None:
    document = loads("x = $$5\ny = $${x}\nz = 5$\n")
    assert document.get("", "x") == "$5"
    assert document.get("", "y") == "${x}"
    assert document.get("", "z") == "5$"


def test_one_reference_twice_is_no_circle() -> None:
    document = loads("x = a\ny = ${x}${x}\nz = ${y}${x}\n")
    assert document.get("", "z") == "aaa"


def test_circles() -> None:
    with pytest.raises(IniError, match="leads back"):
        loads("x = ${y}\ny = ${x}\n").get("", "x")
    with pytest.raises(IniError, match="leads back"):
        loads("[a]\nx = ${X}\n").get("a", "x")


def test_references_that_lead_nowhere() -> None:
    with pytest.raises(IniError, match="leads nowhere"):
        loads("x = ${nothing}\n").get("", "x")
    with pytest.raises(IniError, match="leads nowhere"):
        loads("y = 1\n[a]\nx = ${b:y}\n").get("a", "x", "default")


def test_defaults() -> None:
    document = loads("[a]\nx = 0\n")
    assert document.get("a", "y", "d") == "d"
    assert document.get("b", "x", None) is None
    assert document.get_int("a", "y", 5) == 5
    assert document.get_int("a", "x", 5) == 0
    assert document.get_bool("a", "x", True) is False
    assert document.get_bool("a", "z", True) is True
    with pytest.raises(KeyError):
        document.get_int("a", "y")


def test_truth() -> None:
    document = loads("a = ON\nb = Off\nc = maybe\nd = TRUE\ne = no\n")
    assert document.get_bool("", "a") is True
    assert document.get_bool("", "b") is False
    assert document.get_bool("", "d") is True
    assert document.get_bool("", "e") is False
    with pytest.raises(ValueError):
        document.get_bool("", "c")


def test_lists() -> None:
    document = loads("a = p, q,, r ,\nb = x y\nc =\n")
    assert document.get_list("", "a") == ["p", "q", "r"]
    assert document.get_list("", "b", " ") == ["x", "y"]
    assert document.get_list("", "c") == []


def test_documents_are_separate() -> None:
    first, second = Document(), Document()
    first.set("a", "x", "1")
    assert second.sections() == []
    assert first.get("a", "x") == "1"


def test_written_text_reads_back() -> None:
    document = Document()
    document.set("", "top", "1")
    document.set("a", "blank", " x ")
    document.set("a", "hash", "p # q")
    document.set("a", "lines", "p\nq")
    document.set("a", "quote", '"q"')
    document.set("a", "back", 'a\\b "c"', quoted=True)
    again = loads(dumps(document))
    assert again.get("", "top") == "1"
    assert again.get("a", "blank") == " x "
    assert again.get("a", "hash") == "p # q"
    assert again.get("a", "lines") == "p\nq"
    assert again.get("a", "quote") == '"q"'
    assert again.get("a", "back") == 'a\\b "c"'


def test_written_form() -> None:
    text = dumps(loads("x=1\n[b]\n[a]\ny = ${x}\nz = 'q'\n"))
    assert text == "x = 1\n\n[b]\n\n[a]\ny = ${x}\nz = 'q'\n"
    assert dumps(loads("[a]\nx = 1\n[b]\n")) == "[a]\nx = 1\n\n[b]\n"
    assert dumps(Document()) == ""
