// Sizes and masks that tests of attention go through.
#pragma once

#include <algorithm>

#include "tests/kernels/support.h"

namespace plumb {

inline size_t index(int64_t i) { return static_cast<size_t>(i); }

struct AttentionSizes {
  int64_t batch, heads, kv_heads, queries, keys, width, value_width;
};

// The masks that a test goes through, as the op's argument and as a function.
struct MaskCase {
  const char* name;
  bool causal = false;
  int64_t window = 0;  // 0: none
  int64_t offset = 0;  // of the queries
  int64_t key_offset = 0;
  bool padded = false;     // key_valid: the first keys of each batch row are not
  int explicit_heads = 0;  // 0: no explicit mask
  bool additive = false;

  bool allowed(int64_t b, int64_t h, int64_t t, int64_t s, const AttentionSizes& sizes) const {
    if (explicit_heads) return (7 * t + 3 * s + 5 * b + (explicit_heads > 1 ? h : 0)) % 3 != 0;
    const int64_t q = offset + t, k = key_offset + s;
    if (causal && k > q) return false;
    if (window && q - k >= window) return false;
    return !padded || s >= std::min(sizes.keys - 1, 2 * b + 1);
  }
  double added(int64_t t, int64_t s) const {
    return additive ? 0.25 * static_cast<double>((t + s) % 5) : 0;
  }
};

inline const std::vector<MaskCase>& mask_cases() {
  static const std::vector<MaskCase> cases = [] {
    std::vector<MaskCase> list(9);
    list[0].name = "none";
    list[1].name = "causal";
    list[1].causal = true;
    list[2].name = "causal, queries at the end";
    list[2].causal = true;
    list[2].offset = 1000;
    list[2].key_offset = 993;
    list[3].name = "window";
    list[3].causal = true;
    list[3].window = 3;
    list[3].offset = 4;
    list[4].name = "causal, padded";
    list[4].causal = list[4].padded = true;
    list[5].name = "window that sees nothing";
    list[5].window = 2;
    list[5].offset = 100000;
    list[6].name = "explicit bool";
    list[6].explicit_heads = 1;
    list[7].name = "explicit bool per head";
    list[7].explicit_heads = 4;
    list[8].name = "explicit additive per head";
    list[8].explicit_heads = 4;
    list[8].additive = true;
    return list;
  }();
  return cases;
}

struct AttentionProblem {
  Device& device;
  DType dtype;
  AttentionSizes sizes;
  MaskCase mask_case;
  AttentionMask mask;
  std::vector<Guarded> kept;  // tensors of the mask

  AttentionProblem(Device& on, DType type, const AttentionSizes& s, const MaskCase& m)
      : device(on), dtype(type), sizes(s), mask_case(m) {
    mask.causal = m.causal;
    if (m.window) mask.window = m.window;
    mask.query_offset = m.offset;
    mask.key_offset = m.key_offset;
    if (m.padded) {
      kept.emplace_back(device, DType::boolean, Shape{s.batch, s.keys});
      Values valid;
      for (int64_t b = 0; b < s.batch; ++b) {
        for (int64_t k = 0; k < s.keys; ++k) valid.push_back(k >= std::min(s.keys - 1, 2 * b + 1));
      }
      kept.back().set(valid);
      mask.key_valid = kept.back();
    }
    if (m.explicit_heads) set_explicit(m.explicit_heads > 1 ? s.heads : 1);
  }

  void set_explicit(int64_t heads) {
    const AttentionSizes& s = sizes;
    kept.emplace_back(device, mask_case.additive ? dtype : DType::boolean,
                      Shape{s.batch, heads, s.queries, s.keys}, Layout::exchanged);
    Values values;
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t t = 0; t < s.queries; ++t) {
          for (int64_t k = 0; k < s.keys; ++k) {
            const bool allowed = mask_case.allowed(b, h, t, k, s);
            if (mask_case.additive)
              values.push_back(allowed ? mask_case.added(t, k) : -info(dtype).max);
            else values.push_back(allowed);
          }
        }
      }
    }
    kept.back().set(values);
    mask.explicit_mask = kept.back();
  }
};

inline const std::vector<AttentionSizes>& all_sizes() {
  static const std::vector<AttentionSizes> list = {
      {2, 4, 2, 11, 11, 16, 16},   // as small recordings have them
      {1, 4, 1, 1, 300, 33, 33},   // decoding: all heads share one key-value head
      {2, 4, 4, 3, 129, 20, 40},   // odd key blocks, wider values
      {1, 4, 2, 70, 150, 64, 64},  // several blocks of rows and keys
      {3, 4, 2, 1, 1, 1, 1}};
  return list;
}

}  // namespace plumb
