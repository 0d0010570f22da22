#include "blocks/params.h"

#include <cmath>

#include "kernels/core/error.h"

namespace plumb::blocks {
namespace {

const char* type_name(const Params::Value& value) {
  constexpr const char* kNames[] = {"null",        "bool",        "number", "string",
                                    "number list", "string list", "object"};
  return kNames[value.index()];
}

}  // namespace

void Params::set(const std::string& name, Value value) { values_[name] = std::move(value); }

const Params::Value& Params::take(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    throw BadInput(text(where_, ": parameter \"", name, "\" is missing"));
  }
  taken_[found->first] = true;
  return found->second;
}

template <class T>
static const T& typed(const Params& p, std::string_view name, const Params::Value& value,
                      const char* expected) {
  const T* typed_value = std::get_if<T>(&value);
  if (!typed_value) {
    throw BadInput(text(p.where(), ": parameter \"", name, "\" is a ", type_name(value),
                        ", expected a ", expected));
  }
  return *typed_value;
}

double Params::number(std::string_view name) const {
  return typed<double>(*this, name, take(name), "number");
}

int64_t Params::integer(std::string_view name) const {
  const double value = number(name);
  if (!(std::fabs(value) <= 0x1p53) || value != std::floor(value)) {
    throw BadInput(text(where_, ": parameter \"", name, "\" is ", value, ", expected an integer"));
  }
  return static_cast<int64_t>(value);
}

bool Params::boolean(std::string_view name) const {
  return typed<bool>(*this, name, take(name), "bool");
}

bool Params::boolean_or(std::string_view name, bool absent) const {
  return has(name) ? boolean(name) : absent;
}

const std::string& Params::string(std::string_view name) const {
  return typed<std::string>(*this, name, take(name), "string");
}

const std::vector<double>& Params::numbers(std::string_view name) const {
  return typed<std::vector<double>>(*this, name, take(name), "number list");
}

const std::vector<std::string>& Params::strings(std::string_view name) const {
  return typed<std::vector<std::string>>(*this, name, take(name), "string list");
}

const Params& Params::object(std::string_view name) const {
  return typed<Params>(*this, name, take(name), "object");
}

bool Params::is_null(std::string_view name) const {
  const auto found = values_.find(name);
  const bool null = found != values_.end() && std::holds_alternative<Null>(found->second);
  if (null) taken_[found->first] = true;
  return null;
}

std::optional<double> Params::number_or_null(std::string_view name) const {
  if (is_null(name)) return std::nullopt;
  return number(name);
}

std::optional<int64_t> Params::integer_or_null(std::string_view name) const {
  if (is_null(name)) return std::nullopt;
  return integer(name);
}

void Params::ignore(std::string_view name) const {
  if (has(name)) take(name);
}

void Params::collect_untaken(const std::string& prefix, std::string& names) const {
  for (const auto& [name, value] : values_) {
    const auto it = taken_.find(name);
    if (it == taken_.end() || !it->second) {
      names += (names.empty() ? "" : ", ") + prefix + name;
    } else if (const Params* nested = std::get_if<Params>(&value)) {
      nested->collect_untaken(prefix + name + ".", names);
    }
  }
}

std::string Params::untaken() const {
  std::string names;
  collect_untaken("", names);
  return names;
}

void Params::finish() const {
  const std::string names = untaken();
  if (!names.empty()) {
    throw BadInput(text(where_, ": the block does not read the parameter(s) ", names,
                        "; a parameter that a block ignores would prove nothing"));
  }
}

void Params::rewind() const {
  taken_.clear();
  for (const auto& [name, value] : values_) {
    if (const Params* nested = std::get_if<Params>(&value)) nested->rewind();
  }
}

}  // namespace plumb::blocks
