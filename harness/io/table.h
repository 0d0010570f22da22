// A table of text in columns for a terminal.
#pragma once

#include <string>
#include <vector>

namespace plumb::harness {

class Table {
 public:
  struct Cell {
    std::string words;   // one line
    std::string colour;  // escape sequence, or "" for none
  };

  void add_column(std::string title, bool right);  // right: aligned to the right, for numbers
  void add_row(std::vector<Cell> cells);           // one per column
  // Columns two spaces apart, as wide as their widest cell (one column per code point); no trailing
  // spaces. Every line ends with a line feed.
  std::string to_text() const;

 private:
  struct Column {
    std::string title;
    bool right;
  };
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace plumb::harness
