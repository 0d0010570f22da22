// The published configurations of whole models that can be measured by name.
#pragma once

#include <string>

namespace plumb {

// The config.json of the whole model of a bench shape: what the published one says about the
// computation (tests/configs). Throws UsageError for a shape without one, naming those that have.
std::string model_config(const std::string& shape);

}  // namespace plumb
