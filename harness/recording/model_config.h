// A model's configuration, as recordings and config.json have it.
#pragma once

#include <string>

#include "blocks/params.h"
#include "harness/io/json.h"

namespace plumb::harness {

// Without the keys that no model reads; `where` is for errors.
blocks::Params read_config(JsonValue object, const std::string& where);

}  // namespace plumb::harness
