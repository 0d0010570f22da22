#include "harness/recording/model_config.h"

#include "blocks/models/config.h"
#include "harness/recording/recording_checkpoint.h"
#include "harness/recording/recording_fields.h"

namespace plumb::harness {
namespace {

// As in recordings, and lists of strings, which those never have ("layer_types").
blocks::Params::Value read_setting(JsonValue value, const std::string& where) {
  using Kind = JsonValue::Kind;
  if (value.kind() == Kind::object) {
    blocks::Params out(where);
    for (const JsonMember member : value.members()) {
      const std::string name = read_key(member);
      out.set(name, read_setting(member.value, where + '.' + name));
    }
    return out;
  }
  if (value.kind() != Kind::array) return read_param(value, where);
  std::vector<std::string> words;
  for (const JsonValue item : value.items()) {
    if (item.kind() != Kind::string) return read_param(value, where);
    words.emplace_back(item.string());
  }
  if (words.empty()) return read_param(value, where);
  return words;
}

}  // namespace

blocks::Params read_config(JsonValue object, const std::string& where) {
  blocks::Params out(where);
  for (const JsonMember member : object.members()) {
    const std::string name = read_key(member);
    if (blocks::is_irrelevant_config_key(name)) continue;
    out.set(name, read_setting(member.value, where + ": " + name));
  }
  return out;
}

}  // namespace plumb::harness
