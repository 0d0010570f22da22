// A block of 256 threads makes a 64 x 64 tile, each thread 4 x 4 of it, as product_tiles of gemm.cu
// does; slices of 16 of the inner axis pass through shared memory. Every element is one sum in the
// order of k of separately rounded products: these files are compiled without contraction.
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/gpu/float64_products.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kTile = 64, kDepth = 16, kThreads = 256, kOwn = 4;
constexpr int kLanes = 4;  // products at a time: one computes while others are copied

__device__ inline double to_double(double x) { return x; }
template <class T>
__device__ double to_double(T x) {
  return static_cast<double>(to_float(x));
}

template <class T>
struct Operands {
  int64_t rows, columns, inner;
  const double* a;  // [rows, inner]
  const T* b;
  int64_t b_row, b_column;
  double* out;  // [rows, columns]
};

struct Tiles {
  double a[kDepth][kTile + 1];
  double b[kDepth][kTile + 1];
};

template <class T, bool Magnitudes>
__global__ void __launch_bounds__(kThreads) float64_tiles(Operands<T> p) {
  Tiles& tiles = block_shared<Tiles>();
  const int t = static_cast<int>(thread_index().x);
  const int64_t row_tiles = (p.rows + kTile - 1) / kTile;
  const int64_t row0 = block_index().x % row_tiles * kTile;
  const int64_t column0 = block_index().x / row_tiles * kTile;
  double sum[kOwn][kOwn] = {};
  for (int64_t k0 = 0; k0 < p.inner; k0 += kDepth) {
    block_barrier();  // the slices of the previous round have been used
    for (int i = t; i < kTile * kDepth; i += kThreads) {
      const int k = i % kDepth, r = i / kDepth;
      const bool inside = row0 + r < p.rows && k0 + k < p.inner;
      tiles.a[k][r] = inside ? p.a[(row0 + r) * p.inner + k0 + k] : 0.0;
    }
    for (int i = t; i < kTile * kDepth; i += kThreads) {
      // Neighbouring threads read along b's contiguous axis.
      const int k = p.b_row == 1 ? i % kDepth : i / kTile;
      const int c = p.b_row == 1 ? i / kDepth : i % kTile;
      const bool inside = column0 + c < p.columns && k0 + k < p.inner;
      tiles.b[k][c] =
          inside ? to_double(p.b[(k0 + k) * p.b_row + (column0 + c) * p.b_column]) : 0.0;
    }
    block_barrier();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      double left[kOwn], right[kOwn];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        left[i] = tiles.a[k][t / 16 * kOwn + i];
        right[i] = tiles.b[k][t % 16 + 16 * i];
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
          const double term = left[i] * right[j];
          sum[i][j] += Magnitudes ? fabs(term) : term;
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t row = row0 + t / 16 * kOwn + i;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int64_t column = column0 + t % 16 + 16 * j;
      if (row < p.rows && column < p.columns) p.out[row * p.columns + column] = sum[i][j];
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) widen_all(double* to, const T* from, int64_t n) {
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i < n) to[i] = to_double(from[i]);
}

// Memory that grows and is kept: of the device, or of the host where the device reads and writes
// it.
template <auto Allocate, auto Free>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { give_back(); }
  char* of(int64_t bytes) {
    if (bytes <= bytes_) return static_cast<char*>(data_);
    give_back();
    data_ = Allocate(static_cast<size_t>(bytes));
    bytes_ = bytes;
    return static_cast<char*>(data_);
  }
  int64_t give_back() {
    if (data_) Free(data_);
    data_ = nullptr;
    return std::exchange(bytes_, 0);
  }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};
using DeviceBuffer = Buffer<memory_allocate, memory_free>;
using HostBuffer = Buffer<host_allocate, host_free>;

// Rows in host memory, so many bytes apart.
struct HostRows {
  char* data;
  int64_t count, bytes, stride;
};

template <class F>
void with_wide_storage(DType dtype, F f) {
  if (dtype == DType::f64) return f(double{});
  with_storage("float64 product", dtype, f);
}

// One product at a time: its queue, its memory, its handle of the library.
class Lane {
 public:
  explicit Lane(bool by_library) : stream_(make_stream()) {
    if (by_library) library_ = open_float64_library();
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane() { end_stream(stream_); }

  // a's rows [row0, row0 + rows), to be multiplied with any panel.
  void take_rows(const Float64Gemm& g, int64_t row0, int64_t rows) {
    const auto* a = reinterpret_cast<const char*>(g.a + row0 * g.k);
    upload(a_, {const_cast<char*>(a), 1, rows * g.k * kWide, 0});
    row0_ = row0, rows_ = rows;
  }

  void multiply(const Float64Gemm& g, int64_t column0, int64_t columns) {
    const int64_t size = size_of(g.b_dtype);
    const bool transposed = g.b_column != 1;
    auto* b = static_cast<char*>(const_cast<void*>(g.b)) + column0 * g.b_column * size;
    upload(b_, transposed ? HostRows{b, columns, g.k * size, g.b_column * size}
                          : HostRows{b, g.k, columns * size, g.b_row * size});
    with_wide_storage(g.b_dtype, [&]<class T>(T) {
      auto* out = reinterpret_cast<double*>(out_.of(rows_ * columns * kWide));
      const auto* narrow = reinterpret_cast<const T*>(b_.of(0));
      const Operands<T> p{rows_,
                          columns,
                          g.k,
                          reinterpret_cast<const double*>(a_.of(0)),
                          narrow,
                          transposed ? 1 : columns,
                          transposed ? g.k : 1,
                          out};
      if (library_ && !g.magnitudes) {
        run_library(p, transposed);
      } else {
        run<T, false>(p);
      }
      download(g.out, g.n, column0, columns);
      if (!g.magnitudes) return;
      run<T, true>(p);
      download(g.magnitudes, g.n, column0, columns);
    });
  }

  // Of the device.
  int64_t give_back() {
    int64_t bytes = 0;
    for (DeviceBuffer* buffer : {&a_, &b_, &wide_, &out_, &workspace_})
      bytes += buffer->give_back();
    return bytes;
  }

 private:
  static constexpr int64_t kWide = sizeof(double);

  template <class T, bool Magnitudes>
  void run(const Operands<T>& p) {
    const int64_t tiles = ((p.rows + kTile - 1) / kTile) * ((p.columns + kTile - 1) / kTile);
    launch<float64_tiles<T, Magnitudes>>("oracle", {grid_for(tiles, 1)}, {kThreads}, 0, stream_, p);
  }

  template <class T>
  void run_library(const Operands<T>& p, bool transposed) {
    const int64_t n = p.columns * p.inner;
    const auto* wide = reinterpret_cast<const double*>(p.b);
    if constexpr (sizeof(T) != kWide) {
      auto* to = reinterpret_cast<double*>(wide_.of(n * kWide));
      launch<widen_all<T>>("oracle", {grid_for(n, kThreads)}, {kThreads}, 0, stream_, to, p.b, n);
      wide = to;
    }
    const size_t workspace = library_->workspace_bytes();
    const WideProduct product{p.rows, p.columns, p.inner, transposed, p.a, wide, p.out};
    library_->run(product, workspace_.of(static_cast<int64_t>(workspace)), stream_);
  }

  void upload(DeviceBuffer& to, const HostRows& from) {
    const int64_t bytes = from.count * from.bytes;
    if (bytes == 0) return;
    char* staged = staging_.of(bytes);
    for (int64_t i = 0; i < from.count; ++i) {
      std::memcpy(staged + i * from.bytes, from.data + i * from.stride,
                  static_cast<size_t>(from.bytes));
    }
    copy_to_device(to.of(bytes), staged, static_cast<size_t>(bytes), stream_);
  }

  void download(double* to, int64_t stride, int64_t column0, int64_t columns) {
    const int64_t bytes = rows_ * columns * kWide;
    char* staged = staging_.of(bytes);
    copy_to_host(staged, out_.of(0), static_cast<size_t>(bytes), stream_);
    for (int64_t i = 0; i < rows_; ++i) {
      std::memcpy(to + (row0_ + i) * stride + column0, staged + i * columns * kWide,
                  static_cast<size_t>(columns * kWide));
    }
  }

  Stream stream_;
  std::unique_ptr<Float64Library> library_;
  DeviceBuffer a_, b_, wide_, out_, workspace_;
  HostBuffer staging_;
  int64_t row0_ = 0, rows_ = 0;
};

class GpuFloat64Products final : public Float64Products {
 public:
  GpuFloat64Products(std::string device, int ordinal, bool by_library)
      : device_(std::move(device)), ordinal_(ordinal), by_library_(by_library) {}

  std::string name() const override {
    return device_ + (by_library_ ? ", the vendor's library" : ", our kernel");
  }
  bool exact() const override { return !by_library_; }
  int64_t give_back() override {
    const std::lock_guard lock(mutex_);
    int64_t bytes = 0;
    for (Lane* lane : free_) bytes += lane->give_back();
    return bytes;
  }
  void hold_at_most(int64_t elements) override { piece_ = elements; }

  void compute(const Float64Gemm& g) override {
    if (g.m == 0 || g.n == 0) return;
    use_device(ordinal_);
    const Turn turn(*this);
    const int64_t depth = std::max<int64_t>(g.k, 1);
    const int64_t rows = std::clamp<int64_t>(piece_ / depth, 1, g.m);
    const int64_t columns = std::clamp<int64_t>(piece_ / std::max(depth, rows), 1, g.n);
    for (int64_t row = 0; row < g.m; row += rows) {
      turn.lane->take_rows(g, row, std::min(rows, g.m - row));
      for (int64_t column = 0; column < g.n; column += columns) {
        turn.lane->multiply(g, column, std::min(columns, g.n - column));
      }
    }
  }

 private:
  // A lane of this thread's own, as long as it lives. Waits where all are taken: not for long.
  struct Turn {
    explicit Turn(GpuFloat64Products& all) : all(all) {
      std::unique_lock lock(all.mutex_);
      all.given_back_.wait(lock, [&] { return !all.free_.empty() || all.lanes_.size() < kLanes; });
      if (all.free_.empty()) {
        all.lanes_.push_back(std::make_unique<Lane>(all.by_library_));
        all.free_.push_back(all.lanes_.back().get());
      }
      lane = all.free_.back();
      all.free_.pop_back();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      {
        const std::lock_guard lock(all.mutex_);
        all.free_.push_back(lane);
      }
      all.given_back_.notify_one();
    }
    GpuFloat64Products& all;
    Lane* lane = nullptr;
  };

  const std::string device_;
  const int ordinal_;
  const bool by_library_;
  int64_t piece_ = int64_t{8} << 20;  // elements of an operand on the device at a time
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> free_;
};

}  // namespace

std::shared_ptr<Float64Products> open_float64_products(const std::string& device, int ordinal) {
  const OracleProducts asked = oracle_products();
  const bool emulated = kExactMemory;
  if (asked == OracleProducts::cpu || (asked == OracleProducts::automatic && emulated)) {
    return nullptr;
  }
  const bool by_library = asked == OracleProducts::library;
  if (by_library) {
    require(open_float64_library() != nullptr, "oracle", "PLUMB_ORACLE=library: ", device,
            " has no library for products: gpu, cpu");
  }
  return std::make_shared<GpuFloat64Products>(device, ordinal, by_library);
}

}  // namespace plumb::PLUMB_GPU_VENDOR
