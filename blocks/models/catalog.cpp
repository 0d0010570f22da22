#include <algorithm>

#include "blocks/models/dialects.h"
#include "blocks/models/zamba2.h"
#include "blocks/quantisation.h"
#include "kernels/core/error.h"

namespace plumb::blocks {
namespace {

const Dialect* find_dialect(std::string_view type) {
  const auto& rows = dialects();
  const auto found = std::ranges::find(rows, type, &Dialect::model_type);
  return found == rows.end() ? nullptr : &*found;
}

std::string known_types() {
  std::string out;
  for (const Dialect& dialect : dialects()) out += text(dialect.model_type, ", ");
  return out + "zamba2";
}

}  // namespace

std::unique_ptr<CausalLm> load_model(const Weights& weights, const Config& config) {
  const std::string type = config.string_or("model_type", "");
  const Dialect* dialect = find_dialect(type);
  if (!dialect && type != "zamba2") {
    throw Unsupported(text(config.where(), ": model_type \"", type,
                           "\" is not implemented; known: ", known_types()));
  }
  if (const Params* quantisation = config.quantisation()) {
    weights.quantise(std::make_shared<const QuantisedScheme>(read_quantisation(*quantisation)));
  }
  config.dtype();                 // for who chooses one
  config.ignore("eos_token_id");  // for who generates
  std::unique_ptr<CausalLm> model =
      dialect ? load_decoder(weights, config, *dialect) : load_zamba2(weights, config);
  config.finish();
  return model;
}

Weights expected_weights(const Config& config) {
  const Weights weights = Weights::shapes_only(DType::f32, config.where());
  load_model(weights, config);
  return weights;
}

}  // namespace plumb::blocks
