#include "blocks/quantisation.h"

#include <algorithm>

#include "kernels/core/error.h"

namespace plumb::blocks {
namespace {

// A key that is null counts as absent.
bool is_given(const Params& p, std::string_view name) {
  return p.has(name) && !std::holds_alternative<Params::Null>(p.values().find(name)->second);
}
std::string string_or(const Params& p, std::string_view name, const std::string& otherwise) {
  return is_given(p, name) ? p.string(name) : otherwise;
}
int64_t integer_or(const Params& p, std::string_view name, int64_t otherwise) {
  return is_given(p, name) ? p.integer(name) : otherwise;
}
bool boolean_or(const Params& p, std::string_view name, bool otherwise) {
  return is_given(p, name) ? p.boolean(name) : otherwise;
}
// Nothing in it: absent, null, false, or no elements.
bool is_off(const Params& p, std::string_view name) {
  if (!is_given(p, name)) return true;
  const Params::Value& value = p.values().find(name)->second;
  if (const bool* flag = std::get_if<bool>(&value)) return !*flag;
  if (const auto* numbers = std::get_if<std::vector<double>>(&value)) return numbers->empty();
  const auto* object = std::get_if<Params>(&value);
  return object && object->values().empty();
}

template <class... Parts>
[[noreturn]] void refuse_scheme(const Params& p, const Parts&... parts) {
  throw Unsupported(text(p.where(), ": ", parts...));
}
void require_off(const Params& p, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (!is_off(p, name)) refuse_scheme(p, name, " is not implemented");
  }
}

std::vector<std::string> names_in(const Params& p, std::string_view name) {
  if (!is_given(p, name)) return {};
  if (std::holds_alternative<std::vector<double>>(p.values().find(name)->second)) return {};
  return p.strings(name);
}

int64_t group_of(const Params& p, int64_t otherwise) {
  const int64_t size = integer_or(p, "group_size", otherwise);
  p.expect(size == -1 || size > 0, "group_size is ", size, ", expected -1 or more than 0");
  return size == -1 ? 0 : size;
}

void require_four_bits(const Params& p) {
  const int64_t bits = integer_or(p, "bits", 4);
  if (bits != 4)
    refuse_scheme(p, "bits is ", bits, ", of ", p.string("quant_method"), " 4 are implemented");
}

QuantisedScheme read_gptq(const Params& p) {
  require_four_bits(p);
  require_off(p, {"dynamic", "modules_in_block_to_quantize"});
  const std::string format = string_or(p, "checkpoint_format", "gptq");
  if (format != "gptq" && format != "gptq_v2") {
    refuse_scheme(p, "checkpoint_format is \"", format, "\", known are gptq, gptq_v2");
  }
  QuantisedScheme out{format == "gptq" ? QuantLayout::gptq : QuantLayout::gptq_v2,
                      {1, group_of(p, 128)},
                      "qweight",
                      "scales",
                      "qzeros",
                      {},
                      "g_idx"};
  if (!boolean_or(p, "lm_head", false)) out.kept = {"lm_head"};
  return out;
}

QuantisedScheme read_awq(const Params& p) {
  require_four_bits(p);
  const std::string version = string_or(p, "version", "gemm");
  if (version != "gemm" && version != "GEMM") {
    refuse_scheme(p, "version is \"", version, "\", of awq gemm is implemented");
  }
  if (!boolean_or(p, "zero_point", true)) {
    refuse_scheme(p, "zero_point is false, of awq true is implemented");
  }
  QuantisedScheme out{QuantLayout::awq, {1, group_of(p, 128)}, "qweight", "scales", "qzeros"};
  out.kept = names_in(p, "modules_to_not_convert");
  out.kept.emplace_back("lm_head");
  return out;
}

QuantisedScheme read_fp8(const Params& p) {
  QuantisedScheme out{QuantLayout::fp8, {128, 128}, "weight", "weight_scale_inv"};
  if (is_given(p, "weight_block_size")) {
    const std::vector<double>& size = p.numbers("weight_block_size");
    p.expect(size.size() == 2 && size[0] >= 1 && size[1] >= 1, "weight_block_size has ",
             size.size(), " numbers, expected two, of at least 1");
    out.group = {static_cast<int64_t>(size[0]), static_cast<int64_t>(size[1])};
  }
  out.kept = names_in(p, "modules_to_not_convert");
  out.kept.emplace_back("lm_head");
  return out;
}

QuantisedScheme read_torchao(const Params& p) {
  require_off(p, {"include_input_output_embeddings"});
  p.expect(is_given(p, "quant_type") && p.object("quant_type").has("default"),
           "quant_type has no default, of torchao no other is implemented");
  const Params& type = p.object("quant_type").object("default");
  const std::string name = type.string("_type");
  const Params& data = type.object("_data");
  int64_t group = 0;
  if (is_given(data, "granularity")) {
    const Params& granularity = data.object("granularity");
    const std::string of = granularity.string("_type");
    if (of == "PerGroup") group = granularity.object("_data").integer("group_size");
    else if (of != "PerRow" && of != "PerAxis") {
      refuse_scheme(p, "granularity is ", of, ", known are PerRow, PerAxis, PerGroup");
    }
  }
  if (is_given(data, "group_size")) group = data.integer("group_size");
  QuantisedScheme out{QuantLayout::int8_zero, {1, group}, "_weight_qdata", "_weight_scale"};
  if (name == "Float8WeightOnlyConfig") out.layout = QuantLayout::fp8;
  else out.zeros = "_weight_zero_point";
  if (name == "IntxWeightOnlyConfig") {
    const std::string packing = is_given(data, "intx_packing_format")
                                    ? data.object("intx_packing_format").string("_data")
                                    : "UNPACKED_TO_INT8";
    if (packing != "UNPACKED_TO_INT8") {
      refuse_scheme(p, "intx_packing_format is ", packing, ", UNPACKED_TO_INT8 is implemented");
    }
  } else if (name != "Int8WeightOnlyConfig" && name != "Float8WeightOnlyConfig") {
    refuse_scheme(p, "quant_type is ", name, ", known are Int8WeightOnlyConfig, ",
                  "IntxWeightOnlyConfig, Float8WeightOnlyConfig");
  }
  out.kept = names_in(p, "modules_to_not_convert");
  out.kept.emplace_back("lm_head");
  return out;
}

// Of compressed-tensors' formats the layout, and how many columns share a scale where none is said.
struct CompressedFormat {
  std::string_view name;
  QuantLayout symmetric, asymmetric;
  std::string_view codes;
  int64_t bits;
};
constexpr CompressedFormat kCompressed[] = {
    {"pack-quantized", QuantLayout::int4, QuantLayout::int4_zero, "weight_packed", 4},
    {"int-quantized", QuantLayout::int8, QuantLayout::int8_zero, "weight", 8},
    {"float-quantized", QuantLayout::fp8, QuantLayout::fp8, "weight", 8},
    {"naive-quantized", QuantLayout::fp8, QuantLayout::fp8, "weight", 8},
    {"nvfp4-pack-quantized", QuantLayout::nvfp4, QuantLayout::nvfp4, "weight_packed", 4},
    {"mxfp4-pack-quantized", QuantLayout::mxfp4, QuantLayout::mxfp4, "weight_packed", 4},
    {"mxfp8-quantized", QuantLayout::mxfp8, QuantLayout::mxfp8, "weight", 8},
};

OfAxes compressed_group(const Params& weights) {
  const std::string strategy = string_or(weights, "strategy", "channel");
  if (strategy == "tensor") return {0, 0};
  if (strategy == "channel") return {1, 0};
  if (strategy == "group" || strategy == "tensor_group") return {1, group_of(weights, -1)};
  if (strategy == "block") {
    const std::vector<double>& size = weights.numbers("block_structure");
    weights.expect(size.size() == 2, "block_structure has ", size.size(), " numbers, expected two");
    return {static_cast<int64_t>(size[0]), static_cast<int64_t>(size[1])};
  }
  refuse_scheme(weights, "strategy is \"", strategy, "\", known are tensor, channel, group, block");
}

QuantisedScheme read_compressed(const Params& p) {
  require_off(p, {"kv_cache_scheme", "sparsity_config", "transform_config"});
  p.expect(is_given(p, "config_groups"), "config_groups is missing");
  const Params& groups = p.object("config_groups");
  if (groups.values().size() != 1) {
    refuse_scheme(p, "config_groups has ", groups.values().size(), " groups, one is implemented");
  }
  const Params& group = groups.object(groups.values().begin()->first);
  require_off(group, {"input_activations", "output_activations"});
  const std::vector<std::string> targets = names_in(group, "targets");
  if (targets != std::vector<std::string>{"Linear"}) {
    refuse_scheme(group, "targets are other than \"Linear\", which are not implemented");
  }
  const std::string name = string_or(group, "format", string_or(p, "format", ""));
  const auto* const format = std::ranges::find(kCompressed, name, &CompressedFormat::name);
  if (format == std::end(kCompressed)) {
    std::string known;
    for (const CompressedFormat& it : kCompressed)
      known += (known.empty() ? "" : ", ") + std::string(it.name);
    refuse_scheme(p, "format is \"", name, "\", known are ", known);
  }
  const Params& weights = group.object("weights");
  const int64_t bits = integer_or(weights, "num_bits", format->bits);
  if (bits != format->bits) {
    refuse_scheme(weights, "num_bits is ", bits, ", of ", name, ' ', format->bits,
                  " are implemented");
  }
  const bool symmetric = boolean_or(weights, "symmetric", true);
  QuantisedScheme out{symmetric ? format->symmetric : format->asymmetric, compressed_group(weights),
                      std::string(format->codes), "weight_scale"};
  const LayoutRow& row = row_of(out.layout);
  if (row.zeros != ZeroType::none) out.zeros = "weight_zero_point";
  if (row.has_global_scale) out.global_scale = "weight_global_scale";
  if (row.codes == CodeType::words) out.unused = "weight_shape";
  out.kept = names_in(p, "ignore");
  return out;
}

struct Method {
  std::string_view name;
  QuantisedScheme (*read)(const Params&);
};
constexpr Method kMethods[] = {{"gptq", read_gptq},
                               {"awq", read_awq},
                               {"compressed-tensors", read_compressed},
                               {"fp8", read_fp8},
                               {"torchao", read_torchao}};

// All that is in it: what changes a computation is held to what is implemented above.
void take_everything(const Params& params) {
  for (const auto& [name, value] : params.values()) {
    params.ignore(name);
    if (const auto* nested = std::get_if<Params>(&value)) take_everything(*nested);
  }
}

int64_t parts_of(int64_t length, int64_t size) {
  return size == 0 ? 1 : (length + size - 1) / size;
}

}  // namespace

QuantisedScheme read_quantisation(const Params& config) {
  const std::string name = string_or(config, "quant_method", "");
  const auto* const method = std::ranges::find(kMethods, name, &Method::name);
  if (method == std::end(kMethods)) {
    std::string known;
    for (const Method& it : kMethods) known += (known.empty() ? "" : ", ") + std::string(it.name);
    refuse_scheme(config, "quant_method is \"", name, "\", which is not implemented; known are ",
                  known);
  }
  QuantisedScheme out = method->read(config);
  take_everything(config);
  return out;
}

bool QuantisedScheme::converts(const std::string& module) const {
  return std::ranges::none_of(kept, [&](const std::string& name) {
    const bool whole = module == name || module.starts_with(name + ".");
    return whole || module.ends_with("." + name);
  });
}

Linear QuantisedScheme::load(const Weights& weights, int64_t rows, int64_t columns,
                             bool bias) const {
  const LayoutRow& row = row_of(layout);
  constexpr int64_t kPerWord = 8, kPerByte = 2;
  const auto words = [](int64_t count) { return parts_of(count, kPerWord); };
  const int64_t row_groups = parts_of(rows, group[0]), groups = parts_of(columns, group[1]);
  const auto stored = [&](int64_t by_row, int64_t by_column) {
    return row.by_input ? Shape{by_column, by_row} : Shape{by_row, by_column};
  };
  const auto packed = [&](int64_t by_row, int64_t by_column, int axis) {
    Shape out = stored(by_row, by_column);
    out.set(axis, words(out[axis]));
    return out;
  };
  const std::vector<DType> floats = {DType::f32, DType::f16, DType::bf16};
  QuantisedOperands out;
  switch (row.codes) {
    case CodeType::words:
      out.codes = weights.stored(codes, packed(rows, columns, row.packed_axis), {DType::i32});
      break;
    case CodeType::bytes:
      out.codes = weights.stored(codes, {rows, parts_of(columns, kPerByte)}, {DType::u8});
      break;
    case CodeType::f8:
      out.codes = weights.stored(codes, {rows, columns}, {DType::f8_e4m3, DType::f8_e5m2});
      break;
    default: out.codes = weights.stored(codes, {rows, columns}, {DType::i8});
  }
  const bool one = group[0] == 0 && group[1] == 0;
  const Shape of_scales = one ? Shape{1} : stored(row_groups, groups);
  const std::vector<DType> scale_dtypes = row.exponents          ? std::vector{DType::u8}
                                          : row.has_global_scale ? std::vector{DType::f8_e4m3}
                                                                 : floats;
  out.scales = weights.stored(scales, of_scales, scale_dtypes);
  if (!zeros.empty()) {
    out.zeros =
        row.zeros == ZeroType::words
            ? weights.stored(zeros, packed(row_groups, groups, row.zeros_axis), {DType::i32})
            : weights.stored(zeros, of_scales, {DType::i8});
  }
  if (!global_scale.empty()) out.global_scale = weights.stored(global_scale, {1}, floats);
  if (!group_index.empty()) {
    out.group_index = weights.stored_or_none(group_index, {columns}, {DType::i32, DType::i64});
  }
  if (!unused.empty()) weights.stored_or_none(unused, {2}, {DType::i64, DType::i32});
  out.params = {layout, {group[0] ? group[0] : rows, group[1] ? group[1] : columns}};
  out.rows = rows;
  out.columns = columns;
  return {{}, bias ? weights.shaped("bias", {rows}) : Tensor(), std::move(out)};
}

}  // namespace plumb::blocks
