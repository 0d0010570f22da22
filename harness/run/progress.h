// The live line of a run: "[12/214]  1.3/18.2 GB  31/s, 7 s left  1 failed  llama-a1/decode-f32
// model.layers.0.self_attn:sdpa#0". Rate and time left come after two seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

namespace plumb::harness {

// Rewrites one terminal line. When not `live` it writes nothing at all.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // columns: width of the terminal; a line that wraps could not be erased. interval: the least time
  // between two redraws.
  Progress(std::ostream& out, bool live, int64_t total, int columns = 80,
           Clock::duration interval = std::chrono::milliseconds(100));
  ~Progress() { erase(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // done: checkpoints finished; current: what is being worked on.
  void show(int64_t done, std::string_view current, int64_t failures,
            Clock::time_point now = Clock::now());
  // Bytes of tensors that are done, and of all: shown, and what the time left is reckoned by, since
  // checkpoints differ in size by a million. Where they are not known, checkpoints are.
  void bytes(int64_t done, int64_t total) { bytes_done_ = done, bytes_total_ = total; }
  // To be called before anything else is written to the terminal; the next show() draws at once.
  void erase();

 private:
  std::ostream& out_;
  bool live_;
  int64_t total_;
  int64_t bytes_done_ = 0, bytes_total_ = 0;
  int columns_;
  Clock::duration interval_;
  std::string amount() const;
  std::string pace(int64_t done, Clock::time_point now) const;

  Clock::time_point started_ = Clock::now();
  Clock::time_point drawn_{};
  bool visible_ = false;
};

// Width of the terminal behind a descriptor, or 80.
int terminal_columns(int descriptor);

}  // namespace plumb::harness
