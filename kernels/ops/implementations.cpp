#include "kernels/ops/implementations.h"

#include <algorithm>
#include <regex>

#include "kernels/core/error.h"

namespace plumb {

std::string to_string(OpId op, ImplName name) {
  return text(name_of(op), name.kernel.empty() ? "" : "/", name.kernel,
              name.variant.empty() ? "" : ".", name.variant);
}

namespace {

std::regex expression_of(const std::string& regex) {
  try {
    return std::regex(regex);
  } catch (const std::regex_error& error) {
    throw UsageError(text("[--impl] \"", regex, "\" is not a regular expression: ", error.what()));
  }
}

}  // namespace

void ImplChoice::force(const std::string& regex, const std::string& device) {
  std::vector<bool> allowed(all_.size(), true);
  OpSet some, excluded;
  const std::regex expression = expression_of(regex);
  for (size_t i = 0; i < all_.size(); ++i) {
    allowed[i] = std::regex_search(to_string(all_[i].op, all_[i].name), expression);
    (allowed[i] ? some : excluded).set(static_cast<size_t>(all_[i].op));
  }
  require(regex.empty() || some.any(), "--impl", '"', regex, "\" is found in no implementation of ",
          device, "; harness support --impl --device ", device, " lists them");
  allowed_ = std::move(allowed);
  forced_ = some & excluded;
  regex_ = regex;
}

bool ImplChoice::finds(const std::string& regex) const {
  const std::regex expression = expression_of(regex);
  return std::any_of(all_.begin(), all_.end(), [&](const Implementation& it) {
    return std::regex_search(to_string(it.op, it.name), expression);
  });
}

bool ImplChoice::allows(OpId op, ImplName name) const {
  if (!forced_[static_cast<size_t>(op)]) return true;
  for (size_t i = 0; i < all_.size(); ++i) {
    if (all_[i].op == op && all_[i].name == name) return allowed_[i];
  }
  return false;
}

void ImplChoice::exhausted() const {
  std::string names;
  for (const Implementation& it : all_) {
    if (it.op == op_) names += (names.empty() ? "" : ", ") + to_string(it.op, it.name);
  }
  throw Unsupported(text('[', name_of(op_), "] --impl \"", regex_,
                         "\" leaves no implementation that can compute this case; there are ",
                         names));
}

void ImplChoice::require_declared() const {
  if (chosen_.kernel.empty()) return;  // nothing to compute, or no names
  for (const Implementation& it : all_) {
    if (it.op == op_ && it.name == chosen_) return;
  }
  throw std::logic_error(text('[', name_of(op_), "] ran ", to_string(op_, chosen_),
                              ", which the device does not declare"));
}

}  // namespace plumb
