#include "kernels/oracle/float64_products.h"

#include <cstdlib>
#include <string_view>

#include "kernels/error.h"

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

}  // namespace plumb
