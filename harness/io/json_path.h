// How a place inside a JSON document is written: checkpoints[3].weights["q_proj.weight"].
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plumb {

void append_json_member(std::string& path, std::string_view name);
void append_json_index(std::string& path, int64_t index);

}  // namespace plumb
