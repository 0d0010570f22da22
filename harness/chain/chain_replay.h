// A recording's whole run on a device, from its ids, by the model that its config and weights make.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "blocks/context.h"
#include "harness/model/inference.h"
#include "harness/recording/recording.h"

namespace plumb::harness {

// A part's output as the device made it, in host memory and contiguous.
struct Seen {
  std::string checkpoint;  // without its call
  std::string output;
  Tensor value;
};
// The latest of that name; undefined where it was not seen.
Tensor find_seen(const std::vector<Seen>& seen, const std::string& checkpoint,
                 std::string_view output);

// A checkpoint's id without its call: as observers know it.
std::string place_of(const Checkpoint& checkpoint);

// Keeps what it is asked to.
class Notes final : public blocks::Observer {
 public:
  using Wanted = std::function<bool(const std::string& checkpoint, std::string_view output)>;
  // `disturb` may change a value before it is kept and passed on.
  using Disturb = std::function<void(const std::string& checkpoint, std::string_view output,
                                     const Tensor& value)>;
  Notes(Device& device, Wanted wanted, Disturb disturb = {})
      : device_(device), wanted_(std::move(wanted)), disturb_(std::move(disturb)) {}

  void probe(const std::string& checkpoint, std::string_view output, const Tensor& value) override;
  const std::vector<Seen>& seen() const { return seen_; }

 private:
  Device& device_;
  Wanted wanted_;
  Disturb disturb_;
  std::vector<Seen> seen_;
};

// Ids of every call of the model, from the checkpoints of the embedding: those that the model was
// given, where these differ from what its embedding got. Throws BadInput where the
// recording cannot be the run of a whole model.
std::vector<TokenRows> recorded_ids(const Recording& recording);
// Tokens of padding on the left of every row; empty: none.
std::vector<int64_t> recorded_padding(const Recording& recording);
// Whether a call continues the sequence of the one before.
bool continues(const Recording& recording);

class ChainReplay {
 public:
  // Throws BadInput where the recording cannot be the run of a whole model.
  explicit ChainReplay(const Recording& recording);

  int64_t steps() const { return static_cast<int64_t>(ids_.size()); }
  const std::vector<TokenRows>& ids() const { return ids_; }  // of every call of the model
  bool goes_on() const { return goes_on_; }  // a call continues the sequence of the one before

  // Runs all steps up to `last`; gives what was wanted of each, in the order in which it ran. In
  // float64 with the recording's inverse frequencies: transformers makes them in float32, whatever
  // the model's dtype, and the pow of its vectorised code is not the correctly rounded one.
  using Wanted =
      std::function<bool(int64_t step, const std::string& checkpoint, std::string_view output)>;
  // `disturb`: changes what the device made, in the device's memory, before the next part has it.
  using Disturb = std::function<void(int64_t step, const std::string& checkpoint,
                                     std::string_view output, const Tensor& value)>;
  // Changes the recorded inverse frequencies of a float64 run before they are used.
  using Frequencies = std::function<void(std::vector<double>& inv_freq)>;
  std::vector<std::vector<Seen>> run(Device& device, DType dtype, int64_t last,
                                     const Wanted& wanted, const Disturb& disturb = {},
                                     const Frequencies& frequencies = {}) const;

 private:
  ModelFolder folder_;
  std::vector<TokenRows> ids_;
  std::vector<std::vector<double>> inv_freq_;  // by step, where it was recorded
  std::vector<int64_t> padding_;               // of every row, on its left
  blocks::CacheKind kind_;
  int64_t room_ = 0;  // tokens of the sequence, or slots of its static cache
  bool goes_on_ = true;
};

}  // namespace plumb::harness
