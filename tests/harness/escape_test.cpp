#include "harness/io/escape.h"

#include "tests/catch.h"
#include "tests/harness/sample_results.h"

namespace plumb::harness {
namespace {

using namespace std::string_view_literals;

TEST_CASE("text for a terminal keeps words and disarms what steers") {
  CHECK(terminal_text("model.layers.0:sdpa#0 \xc3\xa9\xe2\x86\x92\xf0\x9f\x98\x80") ==
        "model.layers.0:sdpa#0 \xc3\xa9\xe2\x86\x92\xf0\x9f\x98\x80");
  CHECK(terminal_text("\x1b[31m\x07\x7f\r\n\t") == "\\x1b[31m\\x07\\x7f\\x0d\\x0a\\x09");
  CHECK(terminal_text("a\0b"sv) == "a\\x00b");
  CHECK(terminal_text("\xc2\x9b") == "\\xc2\\x9b");           // C1: a one-character CSI
  CHECK(terminal_text("\xe2\x80\xae") == "\\xe2\\x80\\xae");  // right-to-left override
  CHECK(terminal_text("\xe2\x80\x8b\xef\xbb\xbf") == "\\xe2\\x80\\x8b\\xef\\xbb\\xbf");
  CHECK(terminal_text("\xff"
                      "a\xc3") == "\\xffa\\xc3");             // invalid, and torn
  CHECK(terminal_text("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // a surrogate
  CHECK(terminal_text("").empty());
}

TEST_CASE("text for XML has no markup and no character that XML 1.0 forbids") {
  CHECK(xml_text("a<b>&\"'\n\t") == "a&#60;b&#62;&#38;&#34;&#39;&#10;&#9;");
  CHECK(xml_text("\0\x01\r\xef\xbf\xbf"sv) == "\\x00\\x01\\x0d\\xef\\xbf\\xbf");
  CHECK(xml_text("]]>") == "]]&#62;");
}

TEST_CASE("text for Markdown cannot open anything") {
  CHECK(markdown_text("a|b`c<d>&e*[f](g)\\~$@") ==
        "a&#124;b&#96;c&#60;d&#62;&#38;e&#42;&#91;f&#93;(g)&#92;&#126;&#36;&#64;");
  CHECK(markdown_text("rms_norm") == "rms_norm");
  CHECK(markdown_text("_x_ __y") == "&#95;x&#95; &#95;&#95;y");
  CHECK(markdown_text("a\nb") == "a&#92;x0ab");
}

TEST_CASE("no line closes a code block") {
  CHECK(markdown_code("plain") == "```text\nplain\n```\n");
  CHECK(markdown_code("a\n````\nb\n") == "`````text\na\n````\nb\n`````\n");
  CHECK(markdown_code("\x1b[0m") == "```text\n\\x1b[0m\n```\n");
}

TEST_CASE("hostile text is harmless everywhere") {
  for (const std::string& text :
       {terminal_text(kHostile), xml_text(kHostile), markdown_text(kHostile)}) {
    for (const char c : text) CHECK((c >= 0x20 && c <= 0x7e));
  }
}

}  // namespace
}  // namespace plumb::harness
