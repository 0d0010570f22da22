// Faults of blocks that move, choose or count elements: what they give is exact.
#include <algorithm>

#include "tests/faults/edits.h"
#include "tests/faults/fault.h"

namespace plumb::harness::testing {
namespace {

// The copy with this index (of those of one call) does something else.
Fault copy_number(const char* block, const char* name, int index,
                  const std::function<void(Call&, const Tensor& out, const Tensor& x)>& run) {
  return {block, name, {.copy = [=](Call& c, auto& out, auto& x) {
            if (c.index == 0) c.kept["first x"] = x, c.kept["first out"] = out;
            if (c.index == index) run(c, out, x);
            else c.ops.copy(out, x);
          }}};
}

// Numbers added to parameters of the block; the fault does not apply where they leave [0, most].
Fault other_numbers(const char* block, const char* name,
                    std::vector<std::pair<const char*, double>> changes, double most) {
  Fault out{block, name, {}};
  out.numbers = [=](blocks::Params& params) {
    for (const auto& [parameter, by] : changes) {
      const double value = params.number(parameter) + by;
      if (value < 0 || value > most) return false;
      params.set(parameter, value);
    }
    return true;
  };
  return out;
}

Fault ids_fault(const char* name, const std::function<void(Values&, const Tensor& t)>& change) {
  return {
      "position_ids", name, {.position_ids = [change](Call& c, auto& t, auto& v, int64_t first) {
        c.ops.position_ids(t, v, first);
        edit(t, [&](Values& ids) { change(ids, t); });
      }}};
}

Fault fill_fault(const char* name,
                 const std::function<void(Call&, const Tensor& out, const Tensor& x,
                                          const Tensor& mask, double value)>& run) {
  return {"mask_fill",
          name,
          {.mask_fill = [run](Call& c, auto& out, auto& x, auto& mask, double value) {
            run(c, out, x, mask, value);
          }}};
}

}  // namespace

std::vector<Fault> concat_faults() {
  const char* block = "concat";
  return {
      copy_number(block, "operands exchanged", 1,
                  [](Call& c, auto& to, auto& x) {
                    const Tensor a = c.kept.at("first x"), at = c.kept.at("first out");
                    const bool same = a.shape() == x.shape();
                    c.ops.copy(to, same ? a : x);
                    c.ops.copy(at, same ? x : a);
                  }),
      copy_number(block, "first operand twice", 1,
                  [](Call& c, auto& to, auto& x) {
                    const Tensor a = c.kept.at("first x");
                    c.ops.copy(to, a.shape() == x.shape() ? a : x);
                  }),
  };
}

std::vector<Fault> slice_faults() {
  return {other_numbers("slice", "one element early", {{"begin", -1}, {"end", -1}}, 1e9)};
}

std::vector<Fault> permute_faults() {
  return {{"permute",
           "shape changed, elements left in place",
           {.transpose = [](Call&, auto& t, auto& x) { put(t, values_of(x)); }}}};
}

std::vector<Fault> cast_faults() {
  return {
      {"cast",
       "last element off by one unit",
       {.cast =
            [](Call& c, auto& t, auto& x) {
              c.ops.cast(t, x);
              edit(t, [&](Values& v) { next_number(v, t); });
            }}},
      {"cast",
       "by way of f16",
       {.cast =
            [](Call& c, auto& t, auto& x) {
              const auto narrow = [](double v) { return round_to(DType::f16, v); };
              put(t, values_of(mapped(c.ops, x, narrow)));
            }}},
  };
}

std::vector<Fault> mask_fill_faults() {
  return {
      fill_fault("filled with zero", [](Call& c, auto& t, auto& x, auto& mask,
                                        double) { c.ops.mask_fill(t, x, mask, 0); }),
      fill_fault("filled with the lowest finite number",
                 [](Call& c, auto& t, auto& x, auto& mask, double value) {
                   c.ops.mask_fill(t, x, mask, value == 0 ? 0 : -info(t.dtype()).max);
                 }),
      fill_fault("value added", [](Call& c, auto& t, auto& x, auto& mask,
                                   double value) { c.ops.mask_fill(t, x, mask, value + 1); }),
  };
}

std::vector<Fault> position_ids_faults() {
  const char* block = "position_ids";
  std::vector<Fault> out = {
      other_numbers(block, "past one token longer", {{"offset", 1}}, 1e9),
      other_numbers(block, "past one token shorter", {{"offset", -1}}, 1e9),
      {block,
       "restarted at every call",
       {.position_ids = [](Call& c, auto& t, auto& v, int64_t) { c.ops.position_ids(t, v, 0); }}},
      ids_fault("padding at 1, as older releases had it",
                [](Values& ids, const Tensor&) {
                  for (size_t i = 0; i + 1 < ids.size() && ids[i + 1] == 0; ++i) ids[i] = 1;
                }),
      ids_fault("counted from 1",
                [](Values& ids, const Tensor&) {
                  for (double& id : ids) ++id;
                }),
      ids_fault("in steps of 2",
                [](Values& ids, const Tensor&) {
                  for (double& id : ids) id *= 2;
                }),
      ids_fault("in reverse",
                [](Values& ids, const Tensor&) { std::reverse(ids.begin(), ids.end()); }),
      ids_fault("last token where the one before is",
                [](Values& ids, const Tensor&) {
                  if (ids.size() > 1) ids.back() = ids[ids.size() - 2];
                }),
  };
  return out;
}

std::vector<Fault> conv_cache_faults() {
  const char* block = "conv_cache";
  return {
      copy_number(block, "columns before lost", 0,
                  [](Call& c, auto& to, auto& x) { c.ops.scale(to, x, 0); }),
      {block,
       "state keeps the first columns",
       {.copy =
            [](Call& c, auto& to, auto& x) {
              const int64_t kernel = to.dim(-1);
              const bool keeps = x.stride(1) > kernel && to.stride(1) == kernel;
              if (!keeps) return c.ops.copy(to, x);
              edit(to, [&](Values& v) { std::fill(v.begin(), v.end(), 0); });
            }}},
  };
}

std::vector<Fault> ssm_cache_faults() {
  return {copy_number("ssm_cache", "returned, but not kept", 0,
                      [](Call& c, auto& to, auto& x) { c.ops.scale(to, x, 0); })};
}

}  // namespace plumb::harness::testing
