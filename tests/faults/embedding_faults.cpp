#include <cmath>

#include "tests/faults/fault.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

using Scale = std::function<double(double scale, const Tensor& weight)>;

Fault scale_fault(const char* name, const Scale& wrong) {
  return {"embedding",
          name,
          {.embedding = [wrong](Call& c, auto& out, auto& ids, auto& w, double scale) {
            c.ops.embedding(out, ids, w, wrong(scale, w));
          }}};
}

// The ids are i64 [B, T]; values keep their order.
Fault ids_fault(const char* name,
                const std::function<void(Values&, const Tensor&, double)>& wrong) {
  return {"embedding",
          name,
          {.embedding = [wrong](Call& c, auto& out, auto& ids, auto& w, double scale) {
            const double rows = static_cast<double>(w.dim(0));
            const Tensor others = changed(c.ops, ids, [&](Values& v) { wrong(v, ids, rows); });
            c.ops.embedding(out, others, w, scale);
          }}};
}

Values rows_of(const Tensor& ids, const Tensor& weight, double scale, bool by_columns) {
  const Values w = values_of(weight);
  const auto channels = static_cast<size_t>(weight.dim(1)),
             rows = static_cast<size_t>(weight.dim(0));
  Values out;
  for (double id : values_of(ids)) {
    const auto row = static_cast<size_t>(id);
    for (size_t c = 0; c < channels; ++c) {
      out.push_back(scale * w[by_columns ? c * rows + row : row * channels + c]);
    }
  }
  return out;
}

}  // namespace

std::vector<Fault> embedding_faults() {
  return {
      scale_fault("scale not rounded to the model's dtype",
                  [](double scale, auto& w) {
                    return scale == 1 ? 1 : std::sqrt(static_cast<double>(w.dim(1)));
                  }),
      scale_fault("scale without the root", [](double scale, auto&) { return scale * scale; }),
      scale_fault("divided by the scale", [](double scale, auto&) { return 1 / scale; }),
      scale_fault("scale of the vocabulary",
                  [](double scale, auto& w) {
                    return scale == 1 ? 1 : std::sqrt(static_cast<double>(w.dim(0)));
                  }),
      ids_fault("next row",
                [](Values& ids, auto&, double rows) {
                  for (double& id : ids) id = std::fmod(id + 1, rows);
                }),
      ids_fault("ids cut to four bits",
                [](Values& ids, auto&, double) {
                  for (double& id : ids) id = std::fmod(id, 16);
                }),
      {"embedding",
       "table read by columns",
       {.embedding = [](Call&, auto& out, auto& ids, auto& w,
                        double scale) { put(out, rows_of(ids, w, scale, true)); }}},
      {"embedding",
       "truncating store",
       {.embedding = [](Call&, auto& out, auto& ids, auto& w,
                        double scale) { put_truncated(out, rows_of(ids, w, scale, false)); }}},
  };
}

}  // namespace plumb::harness::testing
