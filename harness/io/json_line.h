// JSON as it is written: one line, whatever numbers and bytes it holds. For nlohmann's types, which
// the caller includes.
#pragma once

#include <cmath>
#include <string>

namespace plumb::harness {

// JSON has no such numbers: NaN becomes "nan", infinities "inf" and "-inf".
template <class Json>
void name_what_is_not_finite(Json& json) {
  if (json.is_structured()) {
    for (Json& item : json) name_what_is_not_finite(item);
  } else if (const double x = json.is_number_float() ? json.template get<double>() : 0;
             std::isnan(x)) {
    json = "nan";
  } else if (std::isinf(x)) {
    json = x > 0 ? "inf" : "-inf";
  }
}

// On one line without a line feed; numbers that are not finite by name, invalid UTF-8 as U+FFFD.
template <class Json>
std::string json_line(Json json) {
  name_what_is_not_finite(json);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace plumb::harness
