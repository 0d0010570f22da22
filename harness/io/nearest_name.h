// Suggests the closest known name for a typo.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plumb::harness {

// Of the known names the one that the fewest letters tell from `typed` (an insertion, a removal, an
// exchange or a swap of neighbours is one; case, "_" and "-" are none), or that contains it;
// nothing where more than a third of the letters would be wrong.
std::optional<std::string> nearest_name(std::string_view typed,
                                        const std::vector<std::string>& known);

// "; did you mean rms_norm?", or nothing.
std::string did_you_mean(std::string_view typed, const std::vector<std::string>& known);

}  // namespace plumb::harness
