#include "harness/model/model_folder.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "harness/model/inference.h"
#include "kernels/core/device.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 8, "vocab_size": 11,
  "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
  "max_position_embeddings": 32, "torch_dtype": "float32", "rms_norm_eps": 1e-5})";

constexpr const char* kZamba2 = R"({"model_type": "zamba2", "hidden_size": 8, "vocab_size": 11,
  "intermediate_size": 12, "num_hidden_layers": 2, "layers_block_type": ["hybrid", "hybrid"],
  "num_attention_heads": 2, "n_mamba_heads": 4, "mamba_d_state": 4, "adapter_rank": 2,
  "max_position_embeddings": 32, "torch_dtype": "float32"})";

using Tensors = std::map<std::string, Tensor>;

Tensor ramp(const Shape& shape) {
  const Tensor out = host_tensor(DType::f32, shape);
  for (int64_t i = 0; i < out.numel(); ++i) {
    out.data<float>()[i] = 0.1F * static_cast<float>(i % 7 - 3);
  }
  return out;
}

// The weights that kConfig implies.
Tensors right_weights(const fs::path& folder) {
  write_bytes(folder / "config.json", kConfig);
  Tensors out;
  const blocks::Weights expected =
      blocks::expected_weights(blocks::Config(read_model_config(folder / "config.json")));
  for (const auto& [name, shape] : expected.asked()) out[name] = ramp(shape);
  return out;
}

void save(const fs::path& file, const Tensors& tensors) {
  write_safetensors(file, {tensors.begin(), tensors.end()});
}

std::string error_of_run(const fs::path& folder) {
  return error_text([&] {
    const ModelFolder model(folder);
    const auto device = open_device("cpu", 1);
    Inference inference(model, *device, model.dtype(), 1, 8);
    inference.forward({{1, 2, 3}}, 1);
  });
}

}  // namespace

TEST_CASE("published configurations imply the published number of parameters") {
  const auto [name, parameters] = GENERATE(table<const char*, int64_t>({
      {"Llama-2-7b-hf", 6'738'415'616},
      {"Meta-Llama-3-8B", 8'030'261'248},
      {"Llama-3.1-8B", 8'030'261'248},
      {"Llama-3.2-1B", 1'235'814'400},
      {"gemma-2-2b", 2'614'341'888},
      {"gemma-2-9b", 9'241'705'984},
      {"gemma-2-27b", 27'227'128'320},
      {"Mistral-7B-v0.1", 7'241'732'096},
      {"Qwen2-7B", 7'615'616'512},
      {"Qwen3-8B", 8'190'735'360},
      {"Phi-3-mini-4k-instruct", 3'821'079'552},
      {"c4ai-command-r-v01", 34'980'831'232},
      {"Zamba2-1.2B", 1'215'064'704},
      {"Zamba2-2.7B", 2'662'214'560},
      {"Zamba2-7B-Instruct", 7'356'749'648},
  }));
  INFO(name);
  const fs::path file = fs::path(PLUMB_SOURCE_DIR) / "tests" / "configs" / text(name, ".json");
  const blocks::Weights expected =
      blocks::expected_weights(blocks::Config(read_model_config(file)));
  int64_t count = 0;
  for (const auto& [weight, shape] : expected.asked()) count += shape.numel();
  CHECK(count == parameters);
}

TEST_CASE("a model folder with the weights that its configuration implies runs") {
  const TemporaryFolder folder;
  const Tensors tensors = right_weights(folder.path());
  SECTION("in one file, among files that do not matter") {
    save(folder / "model.safetensors", tensors);
    write_bytes(folder / "pytorch_model.bin", "pickled");
    write_bytes(folder / "tokenizer.json", "{}");
    CHECK(error_of_run(folder.path()) == "nothing was thrown");
  }
  SECTION("in two files with an index, reached through links as in the hub's cache") {
    Tensors first = tensors, second;
    second.insert(first.extract("lm_head.weight"));
    fs::create_directory(folder / "blobs");
    save(folder / "blobs" / "1", first);
    save(folder / "blobs" / "2", second);
    fs::create_symlink("blobs/1", folder / "one.safetensors");
    fs::create_symlink("blobs/2", folder / "two.safetensors");
    std::string map;
    for (const auto& [name, tensor] : first) map += text('"', name, "\": \"one.safetensors\", ");
    const std::string index = "{\"metadata\": {}, \"weight_map\": {" + map;
    const auto write_index = [&](const char* end) {
      write_bytes(folder / "model.safetensors.index.json", index + end + "}}");
    };
    write_index("\"lm_head.weight\": \"two.safetensors\"");
    CHECK(error_of_run(folder.path()) == "nothing was thrown");
    write_index("\"lm_head.weight\": \"one.safetensors\"");
    CHECK(contains(error_of_run(folder.path()),
                   "says that \"lm_head.weight\" is in one.safetensors, which does not have it"));
    write_index("\"lm_head.weight\": \"../two.safetensors\"");
    CHECK(contains(error_of_run(folder.path()), "expected the name of a file in this folder"));
    write_index("\"lm_head.weight\": \"three.safetensors\"");
    CHECK(contains(error_of_run(folder.path()), "three.safetensors: cannot be opened"));
  }
}

TEST_CASE("every difference between weights and configuration is in one error") {
  const TemporaryFolder folder;
  Tensors tensors = right_weights(folder.path());
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  tensors["model.layers.0.mlp.upp_proj.weight"] = tensors.extract(up).mapped();
  tensors["model.norm.weight"] = ramp({9});
  tensors["model.layers.0.mlp.down_proj.bias"] = ramp({8});
  save(folder / "model.safetensors", tensors);
  const std::string error = error_of_run(folder.path());
  CHECK(contains(error, "missing (1): " + up));
  CHECK(contains(error, "model.norm.weight [9] instead of [8]"));
  CHECK(contains(error,
                 "unused (2): \"model.layers.0.mlp.down_proj.bias\", "
                 "\"model.layers.0.mlp.upp_proj.weight\""));
}

TEST_CASE("a tied head may be in the file when it equals the embedding") {
  const TemporaryFolder folder;
  Tensors tensors = right_weights(folder.path());
  std::string config = kConfig;
  config.insert(1, "\"tie_word_embeddings\": true, ");
  write_bytes(folder / "config.json", config);
  save(folder / "model.safetensors", tensors);
  CHECK(error_of_run(folder.path()) == "nothing was thrown");
  tensors["lm_head.weight"].data<float>()[5] = 1;
  save(folder / "model.safetensors", tensors);
  CHECK(contains(error_of_run(folder.path()), "ties it to model.embed_tokens.weight"));
}

TEST_CASE("what a configuration asks for is read, refused, or unknown") {
  const auto [more, expected] = GENERATE(table<const char*, const char*>({
      {R"("use_cache": true, "_name_or_path": "x", "id2label": [{}])", "nothing was thrown"},
      {R"("_model_name_or_path": "x", "unk_token_id": 0, "rope_interleaved": false)",
       "nothing was thrown"},
      {R"("ignore_keys_at_rope_validation": null)", "nothing was thrown"},
      {R"("min_length": 3, "transformers.js_config": {"dtype": "q4"})", "nothing was thrown"},
      {R"("rope_theta": 500, "rope_scaling": null)", "nothing was thrown"},
      {R"("rope_scaling": {"type": "linear", "factor": 2})", "nothing was thrown"},
      {R"("rope_parameters": {"rope_type": "default", "rope_theta": 7})", "nothing was thrown"},
      {R"("dtype": "bfloat16")", "dtype and torch_dtype differ"},
      {R"("colour": 1, "rope_scaling": {"type": "linear", "factor": 2, "hue": 1})",
       "unknown key(s) colour, rope_scaling.hue"},
      {R"("rope_theta": 1, "rope_parameters": {"rope_theta": 2})", "rope_theta is 1 and"},
      {R"("rope_scaling": {}, "rope_parameters": {})", "has rope_scaling and rope_parameters"},
      {R"("num_key_value_heads": 3)", "no multiple of num_key_value_heads, 3"},
      {R"("head_dim": 0)", "head_dim is 0, expected 1"},
      {R"("head_dim": "8")", "\"head_dim\" is a string, expected a number"},
  }));
  INFO(more);
  const TemporaryFolder folder;
  save(folder / "model.safetensors", right_weights(folder.path()));
  std::string config = kConfig;
  config.insert(1, std::string(more) + ", ");
  write_bytes(folder / "config.json", config);
  CHECK(contains(error_of_run(folder.path()), expected));
}

TEST_CASE("a feature that is not implemented is unsupported") {
  const auto [more, expected] = GENERATE(table<const char*, const char*>({
      {R"("quantization_config": {"quant_method": "hqq"})",
       "quantization_config: quant_method is \"hqq\", which is not implemented; known are gptq, "
       "awq"},
      {R"("rope_scaling": {"type": "su", "factor": 2})", "rotary type \"su\""},
      {R"("partial_rotary_factor": 0.5)", "partial_rotary_factor is 0.5, expected 1 in this model"},
      {R"("hidden_act": "relu")", "hidden_act is \"relu\""},
      {R"("is_decoder": true)", "is_decoder"},
      {R"("rope_interleaved": true)", "rope_interleaved"},
  }));
  INFO(more);
  const TemporaryFolder folder;
  std::string config = kConfig;
  config.insert(1, std::string(more) + ", ");
  write_bytes(folder / "config.json", config);
  const blocks::Config read(read_model_config(folder / "config.json"));
  CHECK(contains(error_text<Unsupported>([&] { blocks::expected_weights(read); }), expected));
}

TEST_CASE("an unknown architecture names the known ones") {
  const TemporaryFolder folder;
  write_bytes(folder / "config.json", R"({"model_type": "bert"})");
  const blocks::Config config(read_model_config(folder / "config.json"));
  CHECK(contains(error_text<Unsupported>([&] { blocks::expected_weights(config); }),
                 "\"bert\" is not implemented; known: llama, gemma2, "));
}

TEST_CASE("Zamba2's first format is unsupported") {
  const fs::path legacy = fs::path(PLUMB_SOURCE_DIR) / "tests" / "configs" / "legacy";
  const blocks::Config config(read_model_config(legacy / "Zamba2-7B.legacy.json"));
  CHECK(contains(error_text<Unsupported>([&] { blocks::expected_weights(config); }),
                 "layers_block_type has \"m\"; known: hybrid and linear_attention"));
}

TEST_CASE("Zamba2's settings are read, refused, or found to contradict each other") {
  const auto [key, value, expected] = GENERATE(table<const char*, const char*, const char*>({
      {"rope_theta", "10000", "nothing was thrown"},
      {"hybrid_layer_ids", "[5]", "hybrid_layer_ids are not the hybrid layers"},
      {"mamba_headdim", "32", "mamba_headdim is 32, the other keys imply 64"},
      {"attention_hidden_size", "2048", "attention_hidden_size is 2048, the other keys imply 4096"},
      {"n_mamba_heads", "60", "n_mamba_heads is 60; it must divide the mixer's 4096 channels"},
      {"num_hidden_layers", "37", "layers_block_type has 38 entries, num_hidden_layers is 37"},
      {"use_shared_mlp_adapter", "false", "an MLP without adapters is not implemented"},
      {"use_magic", "true", "unknown key(s) use_magic"},
  }));
  INFO(key);
  const fs::path published = fs::path(PLUMB_SOURCE_DIR) / "tests" / "configs" / "Zamba2-1.2B.json";
  nlohmann::json config = nlohmann::json::parse(std::ifstream(published));
  config[key] = nlohmann::json::parse(value);
  const TemporaryFolder folder;
  write_bytes(folder / "config.json", config.dump());
  const blocks::Config read(read_model_config(folder / "config.json"));
  CHECK(contains(error_text<Error>([&] { blocks::expected_weights(read); }), expected));
}

TEST_CASE("a block that layers share may be in the file once for each of them") {
  const TemporaryFolder folder;
  write_bytes(folder / "config.json", kZamba2);
  const blocks::Config config(read_model_config(folder / "config.json"));
  const blocks::Weights expected = blocks::expected_weights(config);
  Tensors tensors;
  for (const auto& [name, shape] : expected.asked()) tensors[name] = ramp(shape);
  const std::string block = "shared_transformer.self_attn.o_proj.weight";
  const std::string second = "model.layers.1." + block;
  CHECK(tensors.count("model.layers.0." + block) == 1);
  CHECK(tensors.count(second) == 0);
  save(folder / "model.safetensors", tensors);
  CHECK(error_of_run(folder.path()) == "nothing was thrown");
  tensors[second] = ramp(tensors["model.layers.0." + block].shape());
  save(folder / "model.safetensors", tensors);
  CHECK(error_of_run(folder.path()) == "nothing was thrown");
  tensors[second].data<float>()[3] = 1;
  save(folder / "model.safetensors", tensors);
  CHECK(contains(error_of_run(folder.path()), "ties it to model.layers.0." + block));
}

TEST_CASE("folders that are no models say what to do") {
  const TemporaryFolder folder;
  CHECK(contains(error_of_run(folder / "absent"), "is no folder"));
  CHECK(contains(error_of_run(folder.path()), "config.json: cannot be opened"));
  write_bytes(folder / "config.json", kConfig);
  CHECK(contains(error_of_run(folder.path()), "has neither model.safetensors nor"));
  write_bytes(folder / "pytorch_model.bin", "pickled");
  CHECK(contains(error_of_run(folder.path()), "Convert them: python -c"));
}

TEST_CASE("weights cut short are bad input: before, and while they are mapped") {
  const TemporaryFolder folder;
  Tensors tensors = right_weights(folder.path());
  tensors["model.embed_tokens.weight"] = ramp({1 << 20, 8});  // many pages
  std::string config = kConfig;
  config.replace(config.find("\"vocab_size\": 11"), 16, "\"vocab_size\": 1048576");
  write_bytes(folder / "config.json", config);
  tensors["lm_head.weight"] = ramp({1 << 20, 8});
  const fs::path file = folder / "model.safetensors";
  save(file, tensors);
  const auto whole = fs::file_size(file);
  SECTION("before") {
    fs::resize_file(file, whole - 5);
    CHECK(contains(error_of_run(folder.path()), ".data_offsets[1]: is "));
  }
  SECTION("while they are mapped") {
    const ModelFolder model(folder.path());
    const auto device = open_device("cpu", 2);
    Inference inference(model, *device, DType::f32, 1, 8);
    inference.forward({{1}}, 1);
    fs::resize_file(file, whole / 2);
    const std::string error = error_text([&] { inference.forward({{1, (1 << 20) - 1}}, 1); });
    CHECK(contains(error, "what was needed is missing"));
    CHECK(contains(error, text("had ", whole, " bytes, now ", whole / 2)));
  }
  SECTION("written to while they are mapped") {
    const ModelFolder model(folder.path());
    const auto device = open_device("cpu", 2);
    Inference inference(model, *device, DType::f32, 1, 8);
    fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(5));
    const std::string error = error_text([&] { inference.forward({{1}}, 1); });
    CHECK(contains(error, "was changed while it was in use"));
  }
}

TEST_CASE("ids that a model does not have are refused") {
  const TemporaryFolder folder;
  save(folder / "model.safetensors", right_weights(folder.path()));
  const ModelFolder model(folder.path());
  const auto device = open_device("cpu", 1);
  Inference inference(model, *device, DType::f32, 1, 2);
  CHECK(contains(error_text<UsageError>([&] {
                   inference.forward({{1, 11}}, 1);
                 }),
                 "token 1 has id 11, the model has ids 0 to 10"));
  CHECK(contains(error_text<UsageError>([&] {
                   inference.forward({{1, 2, 3}}, 1);
                 }),
                 "position 2 is beyond the maximum length 2"));
}

}  // namespace plumb::harness
