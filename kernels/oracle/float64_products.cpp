#include "kernels/oracle/float64_products.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "kernels/core/error.h"

namespace plumb {

OracleProducts oracle_products() {
  const char* value = std::getenv("PLUMB_ORACLE");
  const std::string_view asked = value ? value : "";
  if (asked.empty()) return OracleProducts::automatic;
  if (asked == "cpu") return OracleProducts::cpu;
  if (asked == "gpu") return OracleProducts::gpu;
  if (asked == "library") return OracleProducts::library;
  throw UsageError(text("[oracle] PLUMB_ORACLE=", asked, ": expected cpu, gpu or library"));
}

void Float64Products::tell_failure_to(std::function<void(const std::string& why)> listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

void Float64Products::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (!failed_ && listener_) listener_(why);
  failed_ = true;
}

bool Float64Products::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

}  // namespace plumb
