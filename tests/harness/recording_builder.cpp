#include "tests/harness/recording_builder.h"

#include <vector>

#include "harness/io/sha256.h"
#include "tests/harness/safetensors_bytes.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

std::string hash(const std::string& bytes) {
  return sha256_hex(bytes.data(), static_cast<int64_t>(bytes.size()));
}

std::string file_field(const std::string& path, const std::string& bytes) {
  return R"({"path": ")" + path + R"(", "bytes": )" + std::to_string(bytes.size()) +
         R"(, "sha256": ")" + hash(bytes) + "\"}";
}

std::string table_entry(const std::string& rest, const RawTensor& tensor) {
  return "\"" + rest + ", \"sha256\": \"" + hash(tensor.bytes) + "\"}";
}

const char* const kProvenance =
    R"({"created": "2026-01-31T09:00:00Z", "command": "inspector record",
  "producer": {"python_inspector": "0.1.0", "torch": "2", "transformers": "5", "python": "3",
   "platform": "x", "extra": "1"},
  "architecture": "LlamaForCausalLM", "model_type": "llama", "dtype": "f32", "attention": "eager",
  "model": {"source": "tiny:x", "seed": 18446744073709551615, "revision": null,
   "weights_sha256": null},
  "run": {"mode": "decode", "batch": 2, "tokens": 3, "steps": 1, "chunks": null,
   "left_pad": [0, 1], "cache": "dynamic"},
  "notes": {"free": [1, {"form": null}]}, "warnings": ["w"]})";

const char* const kCheckpoints = R"([
 {"id": "model.norm#0", "block": "rms_norm", "path": "model.norm", "call": 0, "step": 0,
  "contract": "eager", "params": {"eps": 1e-05, "weight_offset": 0, "rounding": "before"},
  "inputs": {"x": {"tensor": "t0", "axes": ["batch", "token", "channel"]}},
  "weights": {"weight": "w0"},
  "outputs": {"out": {"tensor": "t1", "delta": "t2", "error": 1e-08,
   "axes": ["batch", "token", "channel"],
   "valid": {"tensor": "t3", "axes": ["batch", "token", "channel"]}}}},
 {"id": "model.norm:add#0", "block": "add", "path": "model.norm", "function": "add", "call": 0,
  "step": 1, "contract": "fused",
  "params": {"none": null, "flag": true, "whole": 3, "real": 0.5, "name": "silu", "infinite": "inf",
   "list": [1, 2.5, "-inf"], "empty": [], "inner": {"deep": {"x": "nan"}}},
  "inputs": {"a": {"tensor": "t0", "axes": ["batch", "token", "channel"]},
   "b": {"tensor": "t1", "axes": ["batch", "token", "channel"]}},
  "weights": {},
  "outputs": {"out": {"tensor": "t1", "delta": null, "error": "nan",
   "axes": ["batch", "token", "channel"]}}}])";

}  // namespace

std::filesystem::path write_good_recording(const std::filesystem::path& model) {
  std::vector<float> x;
  std::vector<float> out;
  for (int i = 0; i < 24; ++i) {
    x.push_back(static_cast<float>(i) - 11.5f);
    out.push_back(static_cast<float>(i) / 7.0f);
  }
  const RawTensor t0{"t0", "F32", {2, 3, 4}, bytes_of(x)};
  const RawTensor t1{"t1", "F32", {2, 3, 4}, bytes_of(out)};
  const RawTensor t2{"t2", "F32", {2, 3, 4}, bytes_of(std::vector<float>(24, 1e-8f))};
  const RawTensor t3{"t3", "BOOL", {2, 1, 1}, std::string("\1\0", 2)};
  const RawTensor w0{"model.norm.weight", "F32", {4}, bytes_of(std::vector<float>{1, 2, 3, 4})};
  const RawTensor other{"lm_head.weight", "F32", {1}, bytes_of(std::vector<float>{5})};
  const std::string tensors = safetensors_file({t0, t1, t2, t3});
  const std::string weights = safetensors_file({other, w0});

  std::string json = R"({"format": "plumbline-recording", "version": 1, "name": "x/decode-f32",)";
  json += "\n\"provenance\": ";
  json += kProvenance;
  json += R"(, "config": {"hidden_size": 4},
"network": [{"path": "model.norm", "class": "LlamaRMSNorm",
  "parameters": {"weight": {"dtype": "f32", "shape": [4], "tied": null}}},
 {"path": "", "class": "LlamaForCausalLM", "parameters": {}}],
"contracts": {"eager": {"storage": "f32", "multiply": "f32",
  "accumulator": {"bits": 24, "rounding": "nearest"}, "points": "eager"},
 "fused": {"storage": "bf16", "multiply": "bf16",
  "accumulator": {"bits": 25, "rounding": "toward_zero"}, "points": "fused"}},
"files": {"tensors": )";
  json += file_field("tensors.safetensors", tensors);
  json += ", \"weights\": " + file_field("../weights-f32.safetensors", weights);
  json += "},\n\"tensors\": {";
  const std::string cube = R"(": {"file": "tensors", "dtype": "f32", "shape": [2, 3, 4])";
  json += table_entry("t0" + cube, t0) + ", " + table_entry("t1" + cube, t1) + ", ";
  json += table_entry("t2" + cube, t2) + ", ";
  json += table_entry(R"(t3": {"file": "tensors", "dtype": "bool", "shape": [2, 1, 1])", t3) + ", ";
  json += table_entry(R"(w0": {"file": "weights", "name": "model.norm.weight", "dtype": "f32",)"
                      R"( "shape": [4])",
                      w0);
  json += "},\n\"checkpoints\": ";
  json += kCheckpoints;
  json += "}\n";

  const std::filesystem::path folder = model / "decode-f32";
  std::filesystem::create_directories(folder);
  write_bytes(folder / "recording.json", json);
  write_bytes(folder / "tensors.safetensors", tensors);
  write_bytes(model / "weights-f32.safetensors", weights);
  return folder;
}

}  // namespace plumb::harness
