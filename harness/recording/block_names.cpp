#include "harness/recording/block_names.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "blocks/backward.h"
#include "harness/io/json.h"
#include "harness/io/printable.h"
#include "kernels/core/error.h"

namespace plumb::harness {

extern const char kBlockTable[];  // fixtures/schema/blocks.json

namespace {

JsonValue block_table() {
  static const auto document = JsonDocument::parse("blocks.json", kBlockTable);
  return document->root();
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// The table writes an N for each number in "linear_q_adapter_list.3.0.weight".
std::string numbered(std::string name) {
  constexpr std::string_view kList = "_list.";
  for (size_t at = name.find(kList); at != std::string::npos; at = name.find(kList, at + 1)) {
    const size_t begin = at + kList.size(), end = name.find_first_not_of("0123456789", begin);
    if (end > begin && end < name.size() && name[end] == '.') name.replace(begin, end - begin, "N");
  }
  return name;
}

// The table has the weight that these are of: operands of op quantised_linear where it is
// quantised, and what a pruned one is made of.
std::set<std::string> whole_weights(const std::set<std::string>& names, bool quantised) {
  constexpr std::array<std::string_view, 4> kOthers = {"scales", "zeros", "global_scale",
                                                       "group_index"};
  std::set<std::string> out;
  for (const std::string& name : names) {
    const size_t begin = name.rfind('.') + 1;  // 0 where there is none
    const std::string_view last = std::string_view(name).substr(begin);
    if (last == "weight_orig" || last == "bias_orig") {
      out.insert(name.substr(0, name.size() - std::string_view("_orig").size()));
    } else if (quantised && last == "codes") {
      out.insert(name.substr(0, begin) + "weight");
    } else if (last != "weight_mask" && last != "bias_mask" &&
               !(quantised && std::ranges::find(kOthers, last) != kOthers.end())) {
      out.insert(name);
    }
  }
  return out;
}

template <class Map>
std::set<std::string> names_of(const Map& map) {
  std::set<std::string> names;
  for (const auto& entry : map) names.insert(numbered(entry.first));
  return names;
}

class NameCheck {
 public:
  explicit NameCheck(const Checkpoint& checkpoint, JsonValue row) : c_(checkpoint), row_(row) {}

  std::vector<std::string> findings() {
    check_given();
    check_operands("inputs", c_.inputs);
    check_operands("outputs", c_.outputs);
    return std::move(findings_);
  }

  std::vector<std::string> findings_of_backward() {
    check_given();
    std::map<std::string, TensorRef> inputs, cotangents;
    for (const auto& [name, ref] : c_.inputs) {
      const bool handed = name.starts_with(blocks::kCotangent);
      (handed ? cotangents : inputs)
          .emplace(handed ? name.substr(blocks::kCotangent.size()) : name, ref);
    }
    check_operands("inputs", inputs);
    const auto outputs = row_.find("outputs");
    for (const auto& [name, ref] : cotangents) {
      if (outputs && (outputs->find(name) || outputs->find(name + '?'))) continue;
      add("inputs: ", printable(text(blocks::kCotangent, name)), " is of no output of a ",
          forward_of(c_.block));
    }
    if (cotangents.empty()) add("inputs: there is no ", blocks::kCotangent, "*");
    for (const auto& [name, ref] : c_.outputs) {
      const bool gradient = name.starts_with(blocks::kGradient);
      const std::string of = gradient ? name.substr(blocks::kGradient.size()) : "";
      if (inputs.count(of) == 0 && c_.weights.count(of) == 0) {
        add("outputs: ", printable(name), " is the gradient of no input or weight");
      }
    }
    return std::move(findings_);
  }

 private:
  void check_given() {
    compare("params", names_of(c_.params.values()), words("params"));
    if (const auto nested = row_.find("nested")) {
      for (const auto& [name, keys] : nested->members()) check_nested(name, keys.string());
    }
    const auto weights = row_.find("weights");
    if (!weights || !weights->is_null()) {
      compare("weights", whole_weights(names_of(c_.weights), has_quantised_weights(c_)),
              words("weights"));
    }
  }

  std::vector<std::string_view> words(std::string_view field) const {
    const auto names = row_.find(field);
    return names ? words_of(names->string()) : std::vector<std::string_view>();
  }

  void check_nested(std::string_view name, std::string_view keys) {
    const auto found = c_.params.values().find(name);
    if (found == c_.params.values().end()) return;  // it has been said
    const auto* params = std::get_if<blocks::Params>(&found->second);
    if (params) compare(text("params.", name), names_of(params->values()), words_of(keys));
  }

  // A name that ends in ? may be missing.
  void compare(const std::string& where, std::set<std::string> found,
               const std::vector<std::string_view>& expected) {
    for (std::string_view name : expected) {
      const bool optional = name.ends_with('?');
      if (optional) name.remove_suffix(1);
      if (found.erase(std::string(name)) == 0 && !optional) add(where, ": ", name, " is missing");
    }
    for (const std::string& name : found) {
      add(where, ": ", printable(name), " is not one of a ", c_.block, "'s");
    }
  }

  template <class Refs>
  void check_operands(std::string_view field, const Refs& refs) {
    std::vector<std::string_view> names;
    if (const auto expected = row_.find(field)) {
      for (const auto& [name, axes] : expected->members()) {
        names.push_back(rotates() && (name == "cos?" || name == "sin?") ? name.substr(0, 3) : name);
        const auto ref = refs.find(std::string(name.substr(0, name.find('?'))));
        if (ref == refs.end() || axes.is_null()) continue;
        const std::vector<std::string_view> wanted = words_of(axes.string());
        const std::vector<std::string>& has = ref->second.axes;
        if (std::equal(has.begin(), has.end(), wanted.begin(), wanted.end())) continue;
        std::string list;
        for (const std::string& axis : has) list += axis + ' ';
        add(field, '.', ref->first, ": axes are ", list, "and not ", axes.string());
      }
    }
    compare(std::string(field), names_of(refs), names);
  }

  // Only attention that does not rotate has no table of cosines.
  bool rotates() const {
    const blocks::Params* params = &c_.params;
    const auto inner = params->values().find("attention");
    if (inner != params->values().end()) params = std::get_if<blocks::Params>(&inner->second);
    if (!params || !params->has("rotary")) return true;
    const auto* rotary = std::get_if<bool>(&params->values().find("rotary")->second);
    return !rotary || *rotary;
  }

  template <class... Parts>
  void add(const Parts&... parts) {
    findings_.push_back(text(parts...));
  }

  const Checkpoint& c_;
  const JsonValue row_;
  std::vector<std::string> findings_;
};

}  // namespace

std::vector<std::string> name_findings(const Checkpoint& checkpoint) {
  const std::string_view forward = forward_of(checkpoint.block);
  const auto row = block_table().find(forward.empty() ? checkpoint.block : forward);
  if (!row) return {};
  NameCheck check(checkpoint, *row);
  return forward.empty() ? check.findings() : check.findings_of_backward();
}

}  // namespace plumb::harness
