// What a small kernel of the tests needs: inputs 1, 2, 3, ..., outputs, and a queue of a wave width
// and seed. Included by files that are compiled as GPU kernels, once per vendor.
#pragma once

#include <vector>

#include "kernels/gpu/gpu.h"

namespace plumb::PLUMB_GPU_VENDOR {

// A second queue next to that of a Bench, which ends though a launch throws.
struct Queue {
  Queue() : stream(make_stream()) {}
  ~Queue() { end_stream(stream); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  const Stream stream;
};

class Bench {
 public:
  static constexpr int kCount = 256;

  Bench(int wave, uint64_t seed) {
    use_device(wave);
    stream_ = make_stream();
    stream_->seed = seed;
    std::vector<float> values(kCount);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1);
    in_ = array(values);
    out_ = array(std::vector<float>(kCount, 0.0f));
  }
  ~Bench() {
    for (void* p : owned_) memory_free(p);
    end_stream(stream_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Stream stream() const { return stream_; }
  int wave() const { return stream_->wave; }
  float* in() const { return in_; }
  float* out() const { return out_; }

  // Uninitialised device memory, freed with the bench.
  template <class T>
  T* fresh(size_t count) {
    owned_.push_back(memory_allocate(count * sizeof(T)));
    return static_cast<T*>(owned_.back());
  }
  template <class T>
  T* array(const std::vector<T>& values) {
    T* p = fresh<T>(values.size());
    copy_to_device(p, values.data(), values.size() * sizeof(T), stream_);
    return p;
  }
  void free_now(void* p) {
    memory_free(p);
    std::erase(owned_, p);
  }

  // Whether the first `count` outputs are f(0), f(1), ...
  template <class F>
  bool gives(int count, F f) const {
    std::vector<float> y(kCount);
    copy_to_host(y.data(), out_, y.size() * sizeof(float), stream_);
    for (int i = 0; i < count; ++i) {
      if (y[static_cast<size_t>(i)] != static_cast<float>(f(i))) return false;
    }
    return true;
  }

 private:
  Stream stream_{};
  float* in_ = nullptr;
  float* out_ = nullptr;
  std::vector<void*> owned_;
};

__device__ inline int thread() { return static_cast<int>(thread_index().x); }

}  // namespace plumb::PLUMB_GPU_VENDOR
