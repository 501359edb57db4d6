import pytest
from delimited import DelimitedError, Dialect, read_records, read_rows, sniff, write_rows


def test_empty_fields() -> None:
    assert read_rows("a,,b\n") == [["a", "", "b"]]
    assert read_rows(",\n") == [["", ""]]
    assert read_rows("a,\n,b\n") == [["a", ""], ["", "b"]]


def test_last_row_needs_no_end() -> None:
    assert read_rows("a,b") == [["a", "b"]]
    assert read_rows("a,") == [["a", ""]]
    assert read_rows('a,"b"') == [["a", "b"]]


def test_all_line_ends() -> None:
    assert read_rows("a\r\nb\rc\nd") == [["a"], ["b"], ["c"], ["d"]]


def test_empty_lines_are_no_rows() -> None:
    assert read_rows("a\n\n\r\nb\n\n") == [["a"], ["b"]]
    assert read_rows("") == []
    assert read_rows("\n") == []


def test_an_empty_quoted_field_is_a_row() -> None:
    assert read_rows('a\n""\nb\n') == [["a"], [""], ["b"]]


def test_doubled_quotes() -> None:
    assert read_rows('"say ""hi""",b') == [['say "hi"', "b"]]
    assert read_rows('""""\n') == [['"']]
    assert read_rows('"",""""""') == [["", '""']]


def test_line_ends_in_quotes() -> None:
    assert read_rows('"a\nb",c\nd,e\n') == [["a\nb", "c"], ["d", "e"]]
    assert read_rows('"a\r\nb"\n') == [["a\r\nb"]]


def test_a_quote_inside_a_field_is_text() -> None:
    assert read_rows('5" disk,b\n') == [['5" disk', "b"]]


def test_blanks_are_kept() -> None:
    assert read_rows(" a , b \n") == [[" a ", " b "]]
    assert read_rows(' "a",b\n') == [[' "a"', "b"]]


def test_strip() -> None:
    dialect = Dialect(strip=True)
    assert read_rows(" a , b \n", dialect) == [["a", "b"]]
    assert read_rows('  " a " , b\n', dialect) == [[" a ", "b"]]
    assert read_rows("a b , \n", dialect) == [["a b", ""]]


def test_errors_name_their_row() -> None:
    with pytest.raises(DelimitedError, match="row 2: a quoted field does not end"):
        read_rows('a,b\n"c,d\n')
    with pytest.raises(DelimitedError, match="row 1: text behind"):
        read_rows('"a"b,c\n')
    with pytest.raises(DelimitedError, match="row 3: text behind"):
        read_rows('a\nb\n"c" ,d\n')


def test_other_delimiters_and_quotes() -> None:
    assert read_rows("a|'b|c'\n", Dialect(delimiter="|", quote="'")) == [["a", "b|c"]]
    assert read_rows('a\tb,"c"\n', Dialect(delimiter="\t")) == [["a", 'b,"c"']]


def test_comments() -> None:
    dialect = Dialect(comment="#")
    assert read_rows('# x "\na,b#c\n#end', dialect) == [["a", "b#c"]]
    assert read_rows('#x\r\n"#y"\n', dialect) == [["#y"]]
    assert read_rows("#x\n") == [["#x"]]
    assert read_rows("// x\n/,y\n", Dialect(comment="//")) == [["/", "y"]]


def test_dialect_is_checked() -> None:
    with pytest.raises(ValueError):
        Dialect(delimiter="")
    with pytest.raises(ValueError):
        Dialect(quote="''")
    with pytest.raises(ValueError):
        Dialect(delimiter='"')
    with pytest.raises(ValueError):
        Dialect(delimiter="\n")
    with pytest.raises(ValueError):
        Dialect(quote="\r")


def test_short_records_are_filled() -> None:
    assert read_records("x,y,z\n1\n1,2,3\n") == [{"x": "1", "y": "", "z": ""}, {"x": "1", "y": "2", "z": "3"}]


def test_long_records_are_refused() -> None:
    with pytest.raises(DelimitedError, match="row 3: 3 fields, but 2 names"):
        read_records("x,y\n1,2\n1,2,3\n")


def test_headers() -> None:
    assert read_records("") == []
    assert read_records("x,y\n") == []
    with pytest.raises(DelimitedError, match="row 1: a name comes twice"):
        read_records("x,y,x\n1,2,3\n")


def test_write_quotes_only_where_needed() -> None:
    assert write_rows([['say "hi"', "a,b", "c\nd", '"q"']]) == 'say "hi","a,b","c\nd","""q"""\n'
    assert write_rows([["a\rb", "a;b"]]) == '"a\rb",a;b\n'
    assert write_rows([["a,b", "a;b"]], Dialect(delimiter=";")) == 'a,b;"a;b"\n'


def test_write_none_and_numbers() -> None:
    assert write_rows([[None, 0, 1.5, False]]) == ",0,1.5,False\n"


def test_write_one_empty_field() -> None:
    assert write_rows([[""], ["a"], [None]]) == '""\na\n""\n'
    assert read_rows(write_rows([[""], ["", ""]])) == [[""], ["", ""]]


def test_write_line_end() -> None:
    assert write_rows([["a"], ["b"]], end="\r\n") == "a\r\nb\r\n"
    assert write_rows([]) == ""


def test_write_comments_and_blanks() -> None:
    assert write_rows([["#a", "#b"]], Dialect(comment="#")) == '"#a",#b\n'
    assert write_rows([[" a", "b c", "d "]], Dialect(strip=True)) == '" a",b c,"d "\n'
    assert write_rows([[" a"]]) == " a\n"


def test_sniff_prefers_most_fields() -> None:
    assert sniff("a;b,c;d\n1;2,3;4\n").delimiter == ";"
    assert sniff("a\tb\tc\n1\t2\t3\n").delimiter == "\t"
    assert sniff("a,b;c\n1,2;3\n").delimiter == ","


def test_sniff_needs_equal_rows() -> None:
    assert sniff("a,b|c\n1|2\n").delimiter == "|"
    with pytest.raises(ValueError):
        sniff("a,b\nc\n")
    with pytest.raises(ValueError):
        sniff("word\n")
    with pytest.raises(ValueError):
        sniff("")


def test_sniff_reads_quotes_and_candidates() -> None:
    assert sniff('"a;b;c",d\n"e",f\n').delimiter == ","
    assert sniff("a:b,c\n1:2,3\n", ":").delimiter == ":"


def test_sniff_looks_at_the_first_rows() -> None:
    assert sniff("a,b\n" * 20 + "c\n").delimiter == ","
    with pytest.raises(ValueError):
        sniff("a,b\n" * 19 + "c\n")
