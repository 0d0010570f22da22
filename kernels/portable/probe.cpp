// What a device's arithmetic does where the standards leave it open: the questions of probe.k.
#include <cmath>
#include <limits>

#include "kernels/portable/portable_device.h"

namespace plumb::portable {
namespace {

enum class Question : i32 { fma, contraction, product, is_nan, sum };

float ask(Driver& driver, uint64_t scratch, Question question, float x, float y) {
  const float operands[2] = {x, y};
  const uint64_t to = scratch + sizeof operands;
  driver.upload(scratch, operands, sizeof operands);
  const ProbeArguments p{to, scratch, scratch + sizeof x, 1, static_cast<i32>(question)};
  driver.launch({&kernel_source("probe"), Storage::f32}, 1, &p, sizeof p);
  float out = 0;
  driver.download(&out, to, sizeof out);
  return out;
}

}  // namespace

Behaviour probe(Driver& driver, uint64_t scratch) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto answer = [&](Question question, float x, float y) {
    return ask(driver, scratch, question, x, y);
  };
  const float x = 1 + 0x1p-12f, y = -(1 + 0x1p-11f);  // x^2 + y is 2^-24, which x^2 alone loses
  require<DeviceError>(answer(Question::contraction, x, y) == 0, "device", driver.describe(),
                       ": its compiler contracts products and sums, which kernels forbid");
  Behaviour out;
  out.fma_rounds_once = answer(Question::fma, x, y) == 0x1p-24f;
  out.keeps_subnormals = answer(Question::product, 0x1p-100f, 0x1p-40f) == 0x1p-140f &&
                         answer(Question::product, 0x1p-130f, 1) == 0x1p-130f;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  out.keeps_infinities = answer(Question::is_nan, nan, 0) == 1 &&
                         answer(Question::sum, kInfinity, -1) == kInfinity &&
                         answer(Question::sum, -kInfinity, 1) == -kInfinity &&
                         std::isnan(answer(Question::sum, nan, 1)) &&
                         std::isnan(answer(Question::sum, kInfinity, -kInfinity));
  return out;
}

std::string describe(const Behaviour& behaviour) {
  return text("fma rounds ", behaviour.fma_rounds_once ? "once" : "twice", ", subnormals are ",
              behaviour.keeps_subnormals ? "kept" : "flushed");
}

}  // namespace plumb::portable
