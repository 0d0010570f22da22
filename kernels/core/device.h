// Device: memory, queue and ops of one place where kernels run. One in-order queue per device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/tensor.h"

namespace plumb {

class Float64Products;
class Ops;

// How often a device did what must not happen inside a block.
struct DeviceCounters {
  int64_t allocations = 0;  // that reached the driver
  int64_t copies = 0;       // between host and device
  int64_t waits = 0;        // of the host for the device

  bool operator==(const DeviceCounters&) const = default;
  DeviceCounters operator-(const DeviceCounters& before) const {
    return {allocations - before.allocations, copies - before.copies, waits - before.waits};
  }
};

// Work that a device has recorded.
class Graph {
 public:
  virtual ~Graph() = default;
  // Queues it once more: the same kernels on the same memory.
  virtual void replay() = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;      // "cpu", "cuda:0": what --device takes
  virtual std::string describe() const = 0;  // one line: hardware, instruction set, libraries

  // A contiguous tensor with undefined contents, 64-byte aligned. Throws DeviceError when out of
  // memory.
  virtual Tensor allocate(DType dtype, const Shape& shape) = 0;
  // Host bytes in the tensor's (contiguous) layout to the device and back.
  virtual void upload(const Tensor& to, const void* from) = 0;
  virtual void download(void* to, const Tensor& from) = 0;
  // Every byte of a contiguous tensor set to `byte`.
  virtual void fill(const Tensor& t, uint8_t byte) = 0;
  // That of kernels/core/checksum.h over the bytes of a contiguous tensor.
  virtual uint64_t checksum(const Tensor& t);
  // Waits for all work queued so far; throws DeviceError if any of it failed.
  virtual void synchronize() = 0;
  // Seconds that the work queued by `queue_work` takes, by the device's own clock where it has one;
  // waits for it.
  virtual double time(const std::function<void()>& queue_work);

  // Records what `queue_work` queues instead of doing it; null where a device has no such thing.
  // UsageError if memory is taken, copied from or to the host, or waited for meanwhile.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>&) { return nullptr; }

  virtual Ops& ops() = 0;
  // Large products of the oracle that judges it, on hardware that is good at them; null: none.
  // PLUMB_ORACLE names another way than the device's own choice; UsageError where it has none such.
  virtual std::shared_ptr<Float64Products> float64_products() { return nullptr; }
  // Where ops work on the host's memory: the owner that a Storage of any such memory has to name so
  // that they take it, a mapped file for example. Else null.
  virtual const void* host_owner() const { return nullptr; }
  // Whether a kernel that touches a byte outside what allocate() gave ends with a DeviceError.
  virtual bool checks_bounds() const { return false; }
  // A GPU's stream, where ops of a plugin queue their work; null where ops run at once.
  virtual void* queue() { return nullptr; }

  // Since the device was opened; nothing where memory is the host's.
  virtual std::optional<DeviceCounters> counters() const { return {}; }
};

// Why a device cannot be used here, or that it can.
struct DeviceStatus {
  std::string name;
  bool usable = false;
  std::string text;        // description, or the reason and what to do
  bool contestant = true;  // "auto" may choose it: not the referee, not an emulated device
};

// Every device that this binary knows, usable or not, in the order of preference of "auto".
std::vector<DeviceStatus> list_devices();

// Opens a device by name ("cpu", "oracle", "cuda:0"); throws UsageError for an unknown name and
// DeviceError with the reason for one that cannot be used here. `threads` 0 means one per core.
std::unique_ptr<Device> open_device(const std::string& name, int threads = 0);

// The oracle that judges `judged`, which may do its largest products.
std::unique_ptr<Device> open_referee(Device& judged, int threads = 0);

// Loads a plugin (kernels/plugin.h): devices opened later have its ops, or it is a device
// itself. Throws BadInput naming the file and what is wrong with it. Call it before the
// first device is opened; it is not thread-safe.
void load_plugin(const std::string& file);

struct LoadedPlugin {
  std::string file, device;
};
std::vector<LoadedPlugin> loaded_plugins();

}  // namespace plumb
