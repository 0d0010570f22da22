// The words of a contract: where kernels round, and what else it allows them inside.
// fixtures/schema/contracts.json has them, which Python reads, too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/io/json.h"

namespace plumb::harness {

// Roundings that may be asked for, in the table's order: "inferred", "eager".
const std::vector<std::string>& rounding_words();

// All words for what happens inside, in the table's order.
const std::vector<std::string>& inside_words();
bool is_inside_word(std::string_view word);

// "sums-16, p-16".
std::string words_listed(const std::vector<std::string>& words);

// "sums-16: sums that are stored in 16 bits accumulate in them".
std::string inside_text(std::string_view word);

// A contract's list; BadInput for a word that the table does not have, or has earlier.
std::vector<std::string> read_inside(JsonValue value);

}  // namespace plumb::harness
