#include "tests/faults/parameter_edits.h"

#include "kernels/core/error.h"

namespace plumb::harness::testing {
namespace {

blocks::Params with(const blocks::Params& params, const std::string& name,
                    const blocks::Params::Value& value) {
  blocks::Params out = params;
  out.set(name, value);
  return out;
}

blocks::Params without(const blocks::Params& params, const std::string& name) {
  blocks::Params out(params.where());
  for (const auto& [key, value] : params.values()) {
    if (key != name) out.set(key, value);
  }
  return out;
}

std::vector<std::pair<std::string, double>> changes_of(double value) {
  std::vector<std::pair<std::string, double>> out;
  if (value != 0) out = {{"doubled", 2 * value}, {"halved", value / 2}};
  out.insert(out.end(), {{"+1", value + 1}, {"-1", value - 1}});
  return out;
}

std::vector<ParameterEdit> edits_of(const blocks::Params& params, const std::string& name,
                                    const blocks::Params::Value& value) {
  std::vector<ParameterEdit> out;
  const auto add = [&](const std::string& change, const blocks::Params::Value& changed) {
    out.push_back({name, change, with(params, name, changed)});
  };
  if (const auto* number = std::get_if<double>(&value)) {
    for (const auto& [change, changed] : changes_of(*number)) add(change, changed);
  } else if (const auto* flag = std::get_if<bool>(&value)) {
    add("flipped", !*flag);
  } else if (const auto* list = std::get_if<std::vector<double>>(&value); list && !list->empty()) {
    for (const auto& [change, changed] : changes_of(list->back())) {
      std::vector<double> other = *list;
      other.back() = changed;
      add(change, other);
    }
  } else {
    return out;
  }
  add("null", blocks::Params::Null());
  out.push_back({name, "removed", without(params, name)});
  return out;
}

template <class Numbers>
std::string joined(const Numbers& numbers) {
  std::string out = "[";
  for (const auto& number : numbers) out += text(number, ' ');
  return out + ']';
}

}  // namespace

std::vector<ParameterEdit> parameter_edits(const blocks::Params& params) {
  std::vector<ParameterEdit> out;
  for (const auto& [name, value] : params.values()) {
    if (const auto* nested = std::get_if<blocks::Params>(&value)) {
      for (const ParameterEdit& edit : parameter_edits(*nested)) {
        out.push_back({name + '.' + edit.parameter, edit.change, with(params, name, edit.params)});
      }
      continue;
    }
    for (ParameterEdit& edit : edits_of(params, name, value)) out.push_back(std::move(edit));
  }
  return out;
}

std::string words_of(const blocks::Params& params) {
  std::string out = "{";
  for (const auto& [name, value] : params.values()) {
    if (name == "max_abs_score") continue;
    out += name + ':';
    if (const auto* nested = std::get_if<blocks::Params>(&value)) out += words_of(*nested);
    else if (const auto* number = std::get_if<double>(&value)) out += text(*number);
    else if (const auto* flag = std::get_if<bool>(&value)) out += *flag ? "true" : "false";
    else if (const auto* word = std::get_if<std::string>(&value)) out += *word;
    else if (const auto* list = std::get_if<std::vector<double>>(&value)) out += joined(*list);
    else if (const auto* words = std::get_if<std::vector<std::string>>(&value))
      out += joined(*words);
    out += ' ';
  }
  return out + '}';
}

}  // namespace plumb::harness::testing
