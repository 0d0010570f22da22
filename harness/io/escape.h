// Text from outside (names in recordings, driver messages) made harmless for where it is
// shown.
#pragma once

#include <string>
#include <string_view>

namespace plumb::harness {

// For a terminal and for one line: control characters (C0, C1, DEL, line breaks too), invalid UTF-8
// and characters that reorder or hide text (bidirectional controls, zero-width ones) become \xNN,
// byte by byte. The rest of Unicode stays. printable() (harness/io/printable.h) also quotes and
// cuts.
std::string terminal_text(std::string_view text);

// For XML 1.0 content and attribute values in double quotes: the same, but line feeds and tabs stay
// (as character references), and & < > " ' are escaped.
std::string xml_text(std::string_view text);

// For one line of GitHub-flavoured Markdown, also in a table cell: the same as for a terminal, and
// what Markdown, HTML or GitHub's formulas would interpret becomes a character reference.
std::string markdown_text(std::string_view text);

// A fenced Markdown code block around lines that are safe for a terminal; no line can close it.
std::string markdown_code(std::string_view lines);

// A word of a shell's command line, quoted where it has to be.
std::string shell_word(const std::string& word);

}  // namespace plumb::harness
