#include "harness/cli/support_ops.h"

#include <cstdio>
#include <iomanip>
#include <iostream>

#include "harness/cli/cli.h"
#include "harness/ops/formula_error.h"
#include "harness/ops/op_suite.h"

namespace plumb::harness {
namespace {

std::string number_words(const char* format, double x) {
  char out[32];
  std::snprintf(out, sizeof(out), format, x);
  return out;
}

// "f32 f16": those in which the call of one element runs.
std::string dtypes_of(OpId op, Device& device, Device& oracle) {
  std::string out;
  const auto is_one = [](const std::string& id) { return id.ends_with("/one"); };
  for (const OpCase& it : cases_of(op, {}, is_one)) {
    if (run_op(it, device, oracle).status == Status::unsupported) continue;
    out += text(out.empty() ? "" : " ", name_of(it.storage));
  }
  return out;
}

}  // namespace

int print_op_support(const std::string& device_names, const Step& step) {
  constexpr int kOp = 30, kDevice = 62;
  const auto devices = open_devices(device_names, "", 0);
  const auto oracle = open_device("oracle");
  std::cout << std::left << std::setw(kOp) << "op";
  for (const auto& device : devices) std::cout << std::setw(kDevice) << device->name();
  std::cout << "operands\n";
  std::string beyond;
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    std::cout << std::setw(kOp) << name_of(op);
    for (const auto& device : devices) {
      step(text(name_of(op), " on ", device->name()));
      std::string cell = dtypes_of(op, *device, *oracle);
      const auto error =
          cell.starts_with("f32") ? formula_error(op, *device, *oracle) : std::nullopt;
      if (error) {
        cell += number_words("  %.3g", error->ulps) + number_words(" of %.3g ulp", error->allowed);
        if (!error->within()) {
          beyond += text(name_of(op), " on ", device->name(), ": off by ",
                         number_words("%.4g", error->ulps), " ulp at ",
                         number_words("%.9g", error->at[0]));
          for (size_t input = 2; input < static_cast<size_t>(row_of(op).operands.count); ++input) {
            beyond += number_words(" and %.9g", error->at[input - 1]);
          }
          beyond += number_words(", %.3g are allowed\n", error->allowed);
        }
      }
      std::cout << std::setw(kDevice) << (cell.empty() ? "no such op" : cell);
    }
    std::cout << operands_of(row_of(op)) << "\n" << std::flush;
  }
  std::cout << beyond;
  return beyond.empty() ? 0 : exit_code(Status::fail);
}

}  // namespace plumb::harness
