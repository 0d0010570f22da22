// A recording (fixtures/README.md): one model run, as checkpoints and the tensors they refer to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "blocks/params.h"
#include "harness/io/generator.h"
#include "harness/io/json.h"
#include "harness/recording/recording_trace.h"
#include "kernels/core/tensor.h"
#include "kernels/ops/contract.h"

namespace plumb::harness {

// A tensor by its key in the recording's table, with one axis name per dimension.
struct TensorRef {
  std::string tensor;
  std::vector<std::string> axes;
};

// An output of which only some tokens are stored (harness/recording/sampled.h).
struct SampledRef {
  std::string tokens;     // i64 [n]: indices along the token axis, ascending
  int64_t of = 0;         // extent of that axis in the whole output
  std::string reference;  // f64 [rows, 16]: sketch of the reference
  std::string oracle;     // the same of the oracle
  std::string rms;        // f64 [rows]: of the oracle's rows
};

// How far the reference is from the chained oracle, a float64 run of the whole model: the key of
// o_chain - r (f32, the output's shape); absent, they are equal.
struct ChainedRef {
  std::optional<std::string> delta;
};

// Other rounding points of the same trace: what a kernel that rounds there gives (`values`, of the
// output's dtype and shape), and how many bits of simulated kernels like it differ from that.
struct MemberRef {
  std::string name;  // "rounds once, at the output"
  std::string values;
  SpreadOf bits;
};

// A bug planted in a traced run: the largest statistic / limit that it reaches, and the values that
// it gives an output at some flat positions (i64 [n], f32 [n]).
struct PlantedBug {
  std::string name;  // "mul #7 x 1.01"
  std::string kind;  // "constant"
  std::string output;
  double margin = 0;
  std::string at, values;
};

// The values that are right at open elements of an output of integers or bools: i64 [n] of flat
// positions, ascending, one for each of the values.
struct LegalRef {
  std::string at, values;
  int64_t distinct = -1;  // the axis along which no two values may be the same; -1: none
};

// The reference `tensor`, and how far it is from the float64 oracle. `delta` (f32, same shape) is
// oracle - reference; absent, they are equal. `valid` (bool) has axes among this one's and
// broadcasts; elements that it calls false are judged only for being finite. Where `sampled` is
// set, tensor and delta hold the chosen tokens only, and there is no `valid`.
struct OutputRef {
  std::string tensor;
  std::vector<std::string> axes;
  // What verdicts call the axes, where that is not their names: "" is one without a name.
  std::vector<std::string> labels;
  std::optional<std::string> delta;
  double error = 0;  // as recorded, for people; may be nan or inf
  std::optional<TensorRef> valid;
  std::optional<SampledRef> sampled;
  // What a traced run says, if there was one: m (16-bit outputs), and simulated correct kernels,
  // with sums rounded to nearest, and truncated as tensor cores do.
  std::optional<ModelRef> model;
  std::optional<Spread> spread, truncated;
  std::vector<MemberRef> members;          // 16-bit outputs
  std::optional<std::string> undecidable;  // bool, of choices: where others are right, too
  std::optional<LegalRef> legal;           // which; where it says nothing, that is not known
  int64_t left_out = 0;                    // elements that the caller did not want to be judged
  // Bool, of floats: rows that correct kernels do not agree on. What the spreads say is of the
  // rest.
  std::optional<std::string> ill_conditioned;
  double unstable = 0;                           // relative difference of two runs of the reference
  std::shared_ptr<const Operations> operations;  // that it is made by; null without a traced run
  std::optional<ChainedRef> chained;  // in a chained recording, of the outputs that make the chain
};

// The position of `token`, or else `kv_token`, among axis names; -1: neither.
int token_axis(const std::vector<std::string>& axes);

// The block that a kind is the backward of; "" for a forward.
std::string_view forward_of(std::string_view kind);

struct Checkpoint {
  std::string id;        // <path>[:<function>]#<call>, of gradients with /backward
  std::string block;     // "rms_norm", or of its gradients "rms_norm.backward"
  std::string path;      // of the module
  std::string function;  // empty where the module itself was called
  int64_t call = 0;      // of this path and function, from 0
  int64_t step = 0;      // forward call of the model, from 0
  std::string contract;  // a key of Recording::contracts()
  std::vector<std::string>
      inside;  // what that allows inside of kernels (harness/recording/inside.h)
  std::shared_ptr<const Operations> operations;  // of the traced run; null where there was none
  blocks::Params params;
  std::map<std::string, TensorRef> inputs;
  std::map<std::string, std::string> weights;  // name relative to the module path -> tensor key
  std::map<std::string, OutputRef> outputs;
  std::vector<PlantedBug> bugs;
  std::vector<std::string> remarks;  // of gradients, what verdicts on them say
  // How many times larger an error of the main input is in the output, relative to each, along the
  // reference's own; absent where there is none.
  std::optional<double> amplification;
  // Fields that are reserved for later versions and cannot be used: such a checkpoint is to be
  // reported as unsupported.
  std::vector<std::string> reserved;
};

// Whether it is a block that has quantised weights: its params say their layouts.
bool has_quantised_weights(const Checkpoint& checkpoint);

struct TensorInfo {
  std::string file;  // "tensors", "weights" or "model:<name>"; empty for one that is generated
  std::string name;  // inside the safetensors file
  DType dtype = DType::f32;
  Shape shape;
  std::string sha256;                  // of the payload's bytes
  bool shares_payload = false;         // `name` is another tensor, of the same bytes
  std::optional<Generator> generator;  // instead of a payload
};

// A recording whose files have been checked against each other: every reference resolves, and every
// dtype, shape and size agrees. Copies share one state; thread-safe.
class Recording {
 public:
  // `folder` holds recording.json (or is that file). Checks everything that needs no payload;
  // throws BadInput naming the file, the field, both numbers and what to do. Weights that the
  // recording refers to are sought in the folder that the environment variable PLUMB_WEIGHTS
  // names, else where the recording says.
  // With `findings`, what is wrong with checkpoints goes there, and the recording is without them.
  static Recording open(const std::filesystem::path& folder,
                        std::vector<std::string>* findings = nullptr);

  const std::filesystem::path& folder() const;
  const std::string& name() const;          // "llama-a1/decode-f32"
  DType dtype() const;                      // of the run
  const std::string& architecture() const;  // "LlamaForCausalLM"
  const std::string& model_type() const;    // "llama"
  const std::string& mode() const;          // "decode"
  // Valid as long as a copy of this recording lives.
  JsonValue provenance() const;
  JsonValue config() const;
  JsonValue network() const;

  const std::map<std::string, Contract>& contracts() const;
  std::vector<std::string> inside() const;             // what any of them allows inside of kernels
  const std::vector<Checkpoint>& checkpoints() const;  // in the order they ran
  bool chained() const;                                // whether it has the chained oracle
  // BadInput for a key that the table does not have.
  const TensorInfo& tensor_info(const std::string& key) const;

  // The shape of a whole output, whose tensor may hold chosen rows only.
  Shape output_shape(const OutputRef& output) const;

  // The tensor in host memory, generated where the recording says so; BadInput where its bytes do
  // not have the recorded SHA-256. Tensors
  // read recently are kept and shared between callers: never write to what this returns.
  Tensor read(const std::string& key) const;

  // Compares every byte of files and tensors with the recorded SHA-256; a text for each that
  // differs. Not needed to trust what read() returns.
  std::vector<std::string> wrong_hashes() const;

  // Of recording.json; since that holds the hashes of all tensors, it identifies the golden values.
  const std::string& sha256() const;

 private:
  struct State;
  explicit Recording(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// The folders with a recording.json: `root` itself, or all below it (links are not followed),
// sorted. BadInput when there is none.
std::vector<std::filesystem::path> find_recordings(const std::filesystem::path& root);

}  // namespace plumb::harness
