// Where the oracle's large products are computed in place of the CPU's threads: on the GPU that is
// judged, as a rule. Its results are checked: product_check.h.
#pragma once

#include <functional>
#include <mutex>
#include <string>

#include "kernels/oracle/float64_gemm.h"

namespace plumb {

class Float64Products {
 public:
  virtual ~Float64Products() = default;
  virtual std::string name() const = 0;  // "cuda:0, our kernel"
  // Whether results have the bits of float64_gemm; else they are close.
  virtual bool exact() const = 0;
  // What float64_gemm does. Throws DeviceError. Called by any thread, by several at once.
  virtual void compute(const Float64Gemm& gemm) = 0;
  // Frees what it keeps for the next product -> bytes. What is at work keeps its own.
  virtual int64_t give_back() = 0;
  // Of an operand or of the result, so many elements at a time. Not while something is computed.
  virtual void hold_at_most(int64_t elements) = 0;

  // After a failure nothing more is asked of it. The listener hears the reason of the first.
  void tell_failure_to(std::function<void(const std::string& why)> listener);
  void fail(const std::string& why);
  bool failed() const;

 private:
  mutable std::mutex mutex_;
  bool failed_ = false;
  std::function<void(const std::string&)> listener_;
};

// Where PLUMB_ORACLE has large products computed: on the GPU that is judged, by our kernel (gpu) or
// its vendor's library, or on the CPU. Throws UsageError for a word that is none of these.
enum class OracleProducts { automatic, cpu, gpu, library };
OracleProducts oracle_products();

}  // namespace plumb
