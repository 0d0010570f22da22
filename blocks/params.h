// Params: the numbers a block is given. A strict reader: a parameter that is not read is an error,
// so a new switch in a recording can never be silently ignored.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/core/error.h"

namespace plumb::blocks {

class Params {
 public:
  struct Null {
    bool operator==(const Null&) const = default;
  };
  using Value = std::variant<Null, bool, double, std::string, std::vector<double>,
                             std::vector<std::string>, Params>;

  Params() = default;
  // `where` names the source in errors: "fixtures/x/recording.json: model.norm#0: params".
  explicit Params(std::string where) : where_(std::move(where)) {}

  void set(const std::string& name, Value value);
  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  const std::string& where() const { return where_; }
  const std::map<std::string, Value, std::less<>>& values() const { return values_; }

  // Each marks the parameter as taken. Missing or of another type: BadInput naming it.
  double number(std::string_view name) const;
  int64_t integer(std::string_view name) const;  // a number that is whole
  bool boolean(std::string_view name) const;
  bool boolean_or(std::string_view name, bool absent) const;
  const std::string& string(std::string_view name) const;
  const std::vector<double>& numbers(std::string_view name) const;
  const std::vector<std::string>& strings(std::string_view name) const;
  const Params& object(std::string_view name) const;
  // Null gives nullopt; the parameter itself must be there.
  std::optional<double> number_or_null(std::string_view name) const;
  std::optional<int64_t> integer_or_null(std::string_view name) const;
  bool is_null(std::string_view name) const;  // taken only when null
  // Throws BadInput that begins with where() unless the condition holds.
  template <class... Parts>
  void expect(bool condition, const Parts&... parts) const {
    if (!condition) throw BadInput(text(where_, ": ", parts...));
  }
  // For information that no computation needs.
  void ignore(std::string_view name) const;

  // What was not read, nested objects included: "window, rope.factor"; "" when nothing is left.
  std::string untaken() const;
  // Throws BadInput listing what was not read.
  void finish() const;
  // Forgets what was taken, so that the same params can be read again.
  void rewind() const;

 private:
  const Value& take(std::string_view name) const;
  void collect_untaken(const std::string& prefix, std::string& names) const;

  std::string where_;
  std::map<std::string, Value, std::less<>> values_;
  mutable std::map<std::string, bool, std::less<>> taken_;
};

}  // namespace plumb::blocks
