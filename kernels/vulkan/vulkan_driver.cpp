#include "kernels/vulkan/vulkan_driver.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/vulkan/cleanups.h"
#include "kernels/vulkan/pipelines.h"
#include "kernels/vulkan/vulkan_memory.h"

namespace plumb::vulkan {
namespace {

constexpr size_t kArgumentBytes = 1 << 20, kGraphBytes = 1 << 16, kStagingBytes = 16 << 20;
constexpr size_t kArgumentAlignment = 64;
constexpr uint32_t kMostGroups = 65535;  // of a side of a grid: what every device has

class LogicalDevice {
 public:
  LogicalDevice(const VulkanApi& api, const PhysicalDevice& physical) : api_(api) {
    auto v11 = structure<VkPhysicalDeviceVulkan11Features>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES);
    auto v12 = structure<VkPhysicalDeviceVulkan12Features>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, &v11);
    auto features =
        structure<VkPhysicalDeviceFeatures2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &v12);
    v11.storageBuffer16BitAccess = v12.storageBuffer8BitAccess = physical.has_16_bit_storage;
    v12.bufferDeviceAddress = v12.scalarBlockLayout = VK_TRUE;
    features.features.shaderInt64 = VK_TRUE;
    const float priority = 1;
    auto queue = structure<VkDeviceQueueCreateInfo>(VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO);
    queue.queueFamilyIndex = physical.queue_family;
    queue.queueCount = 1;
    queue.pQueuePriorities = &priority;
    const char* const budget = VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
    auto info = structure<VkDeviceCreateInfo>(VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, &features);
    info.queueCreateInfoCount = 1;
    info.pQueueCreateInfos = &queue;
    info.enabledExtensionCount = physical.has_memory_budget ? 1 : 0;
    info.ppEnabledExtensionNames = &budget;
    check(api_.vkCreateDevice(physical.handle, &info, nullptr, &handle), "vkCreateDevice");
    api_.vkGetDeviceQueue(handle, physical.queue_family, 0, &this->queue);
  }
  ~LogicalDevice() { api_.vkDestroyDevice(handle, nullptr); }
  LogicalDevice(const LogicalDevice&) = delete;
  LogicalDevice& operator=(const LogicalDevice&) = delete;

  VkDevice handle{};
  VkQueue queue{};

 private:
  const VulkanApi& api_;
};

// Arguments of launches, which the device reads when it runs them.
struct ArgumentBlock {
  Buffer buffer;
  size_t used = 0;

  // Their address, nothing where there is no room left.
  std::optional<uint64_t> put(const void* arguments, size_t bytes) {
    if (bytes > buffer.bytes - used) return {};
    std::memcpy(static_cast<char*>(buffer.host) + used, arguments, bytes);
    const uint64_t out = buffer.address + used;
    const size_t end = (used + bytes + kArgumentAlignment - 1) / kArgumentAlignment;
    used = std::min(end * kArgumentAlignment, buffer.bytes);
    return out;
  }
};

// Launches that are recorded apart, with arguments of their own.
struct Recorded {
  VkCommandBuffer commands{};
  std::vector<ArgumentBlock> arguments;
};

class VulkanDriver final : public portable::Driver {
 public:
  VulkanDriver(int ordinal, PFN_vkGetInstanceProcAddr entry, FindShader shader);
  ~VulkanDriver() override { api_.vkQueueWaitIdle(device_.queue); }

  std::string describe() const override { return physical_.description; }
  bool is_cpu() const override { return physical_.is_cpu; }
  std::string lacks(portable::Storage storage) const override {
    return lacking(physical_, storage);
  }
  void use_split_products() override;

  uint64_t allocate(size_t bytes) override { return memory_.make(bytes, Where::device).address; }
  void release(uint64_t address) override {
    wait_quietly();
    memory_.release(address);
  }
  void upload(uint64_t to, const void* from, size_t bytes) override;
  void download(void* to, uint64_t from, size_t bytes) override;
  void fill(uint64_t to, uint8_t byte, size_t bytes) override;
  void launch(const portable::Kernel& kernel, uint32_t groups, const void* arguments,
              size_t bytes) override;
  void synchronize() override;
  double time(const std::function<void()>& queue_work) override;
  std::unique_ptr<Graph> capture(const std::function<void()>& queue_work) override;

  void replay(VkCommandBuffer recorded);
  void forget(const Recorded& recorded);

 private:
  // The buffer that commands go to now; throws DeviceError once the device was lost.
  VkCommandBuffer commands();
  VkCommandBuffer new_commands(VkCommandBufferLevel level);
  void begin(VkCommandBuffer commands, VkCommandBufferUsageFlags usage);
  // Whatever came before is visible to what follows, and to the host if it waits.
  void barrier();
  void copy(Place from, Place to, size_t bytes);
  uint64_t put_arguments(const void* arguments, size_t bytes);
  // Before memory is given back, which may be in a destructor: a lost device runs nothing any more.
  void wait_quietly() {
    try {
      synchronize();
    } catch (const Error&) {
    }
  }
  void require_not_recorded(const char* what) const {
    require(!recorded_, what, "while launches are recorded: only kernels can be replayed");
  }

  Instance instance_;
  const VulkanApi& api_;
  const PhysicalDevice& physical_;
  LogicalDevice device_;
  VulkanMemory memory_;
  Pipelines pipelines_;
  VkCommandPool pool_{};
  VkQueryPool clock_{};
  VkCommandBuffer commands_{};
  bool begun_ = false;  // commands_ have been
  std::string lost_;    // why nothing can run any more
  ArgumentBlock arguments_;
  Buffer staging_;
  Recorded* recorded_ = nullptr;  // what takes launches instead of the queue
  Cleanups cleanups_;             // the last member
};

class VulkanGraph final : public Graph {
 public:
  VulkanGraph(VulkanDriver& driver, Recorded recorded)
      : driver_(driver), recorded_(std::move(recorded)) {}
  ~VulkanGraph() override { driver_.forget(recorded_); }
  void replay() override { driver_.replay(recorded_.commands); }

 private:
  VulkanDriver& driver_;
  Recorded recorded_;
};

VulkanDriver::VulkanDriver(int ordinal, PFN_vkGetInstanceProcAddr entry, FindShader shader)
    : instance_(entry),
      api_(instance_.api()),
      physical_(instance_.device(ordinal)),
      device_(api_, physical_),
      memory_(api_, physical_, device_.handle),
      pipelines_(api_, physical_, device_.handle, std::move(shader)) {
  auto pool = structure<VkCommandPoolCreateInfo>(VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO);
  pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  pool.queueFamilyIndex = physical_.queue_family;
  check(api_.vkCreateCommandPool(device_.handle, &pool, nullptr, &pool_), "vkCreateCommandPool");
  cleanups_.add([this] { api_.vkDestroyCommandPool(device_.handle, pool_, nullptr); });
  auto clock = structure<VkQueryPoolCreateInfo>(VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO);
  clock.queryType = VK_QUERY_TYPE_TIMESTAMP;
  clock.queryCount = 2;
  check(api_.vkCreateQueryPool(device_.handle, &clock, nullptr, &clock_), "vkCreateQueryPool");
  cleanups_.add([this] { api_.vkDestroyQueryPool(device_.handle, clock_, nullptr); });
  commands_ = new_commands(VK_COMMAND_BUFFER_LEVEL_PRIMARY);
  arguments_.buffer = memory_.make(kArgumentBytes, Where::host);
  staging_ = memory_.make(kStagingBytes, Where::host);
}

void VulkanDriver::use_split_products() {
  synchronize();
  pipelines_.use_split_products();
}

VkCommandBuffer VulkanDriver::new_commands(VkCommandBufferLevel level) {
  auto info =
      structure<VkCommandBufferAllocateInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO);
  info.commandPool = pool_;
  info.level = level;
  info.commandBufferCount = 1;
  VkCommandBuffer out{};
  check(api_.vkAllocateCommandBuffers(device_.handle, &info, &out), "vkAllocateCommandBuffers");
  return out;
}

void VulkanDriver::begin(VkCommandBuffer commands, VkCommandBufferUsageFlags usage) {
  const auto inherited =
      structure<VkCommandBufferInheritanceInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO);
  auto info = structure<VkCommandBufferBeginInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO);
  info.flags = usage;
  info.pInheritanceInfo = &inherited;  // of a primary one ignored
  check(api_.vkBeginCommandBuffer(commands, &info), "vkBeginCommandBuffer");
}

VkCommandBuffer VulkanDriver::commands() {
  if (!lost_.empty()) throw DeviceError(lost_);
  if (recorded_) return recorded_->commands;
  if (!begun_) begin(commands_, VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT);
  begun_ = true;
  return commands_;
}

void VulkanDriver::barrier() {
  auto all = structure<VkMemoryBarrier>(VK_STRUCTURE_TYPE_MEMORY_BARRIER);
  all.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  all.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                      VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT |
                      VK_ACCESS_HOST_READ_BIT;
  const VkPipelineStageFlags before =
      VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
  api_.vkCmdPipelineBarrier(commands(), before, before | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &all, 0,
                            nullptr, 0, nullptr);
}

void VulkanDriver::copy(Place from, Place to, size_t bytes) {
  const VkBufferCopy region{from.offset, to.offset, bytes};
  api_.vkCmdCopyBuffer(commands(), from.buffer, to.buffer, 1, &region);
  barrier();
  synchronize();
}

void VulkanDriver::upload(uint64_t to, const void* from, size_t bytes) {
  require_not_recorded("upload");
  const Place place = memory_.place_of(to, bytes);
  synchronize();  // what is queued may still read the staging buffer
  for (size_t done = 0; done < bytes; done += kStagingBytes) {
    const size_t part = std::min(bytes - done, kStagingBytes);
    std::memcpy(staging_.host, static_cast<const char*>(from) + done, part);
    copy({staging_.handle, 0}, {place.buffer, place.offset + done}, part);
  }
}

void VulkanDriver::download(void* to, uint64_t from, size_t bytes) {
  require_not_recorded("download");
  const Place place = memory_.place_of(from, bytes);
  for (size_t done = 0; done < bytes; done += kStagingBytes) {
    const size_t part = std::min(bytes - done, kStagingBytes);
    copy({place.buffer, place.offset + done}, {staging_.handle, 0}, part);
    std::memcpy(static_cast<char*>(to) + done, staging_.host, part);
  }
}

// Vulkan fills whole words; the few bytes around them are copied.
void VulkanDriver::fill(uint64_t to, uint8_t byte, size_t bytes) {
  constexpr size_t word = sizeof(uint32_t);
  const Place place = memory_.place_of(to, bytes);
  const auto edge = [&](size_t from, size_t count) {
    const uint8_t all[word] = {byte, byte, byte, byte};
    if (count > 0) upload(to + from, all, count);
  };
  const size_t head = std::min(bytes, (word - to % word) % word);
  const size_t middle = (bytes - head) / word * word;
  edge(0, head);
  edge(head + middle, bytes - head - middle);
  if (middle == 0) return;
  api_.vkCmdFillBuffer(commands(), place.buffer, place.offset + head, middle, byte * 0x01010101u);
  barrier();
}

uint64_t VulkanDriver::put_arguments(const void* arguments, size_t bytes) {
  if (recorded_) {
    auto& blocks = recorded_->arguments;
    auto at = blocks.empty() ? std::nullopt : blocks.back().put(arguments, bytes);
    if (!at) {
      blocks.push_back({memory_.make(std::max(bytes, kGraphBytes), Where::host)});
      at = blocks.back().put(arguments, bytes);
    }
    return *at;
  }
  auto at = arguments_.put(arguments, bytes);
  if (!at) {
    synchronize();
    at = arguments_.put(arguments, bytes);
  }
  require<DeviceError>(at.has_value(), "vulkan", bytes, " bytes of arguments, at most ",
                       kArgumentBytes);
  return *at;
}

void VulkanDriver::launch(const portable::Kernel& kernel, uint32_t groups, const void* arguments,
                          size_t bytes) {
  require<Unsupported>(groups <= INT32_MAX - kMostGroups, kernel.source->name, groups,
                       " groups, at most ", INT32_MAX - kMostGroups);
  if (groups == 0) return;
  const VkPipeline pipeline = pipelines_.get(kernel);
  const PushConstants push{put_arguments(arguments, bytes), groups, 0};
  const VkCommandBuffer to = commands();
  api_.vkCmdBindPipeline(to, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
  api_.vkCmdPushConstants(to, pipelines_.layout(), VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof push,
                          &push);
  const uint32_t side = std::min(groups, kMostGroups);
  api_.vkCmdDispatch(to, side, (groups + side - 1) / side, 1);
  barrier();
}

void VulkanDriver::synchronize() {
  require_not_recorded("synchronize");
  if (!lost_.empty()) throw DeviceError(lost_);
  if (!begun_) return;
  begun_ = false;
  try {
    check(api_.vkEndCommandBuffer(commands_), "vkEndCommandBuffer");
    auto submit = structure<VkSubmitInfo>(VK_STRUCTURE_TYPE_SUBMIT_INFO);
    submit.commandBufferCount = 1;
    submit.pCommandBuffers = &commands_;
    check(api_.vkQueueSubmit(device_.queue, 1, &submit, VK_NULL_HANDLE), "vkQueueSubmit");
    check(api_.vkQueueWaitIdle(device_.queue), "synchronize");
  } catch (const DeviceError& error) {
    lost_ = error.what();
    throw;
  }
  arguments_.used = 0;
}

double VulkanDriver::time(const std::function<void()>& queue_work) {
  synchronize();
  if (physical_.timestamp_bits == 0) {  // no clock of its own
    const auto start = std::chrono::steady_clock::now();
    queue_work();
    synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  api_.vkCmdResetQueryPool(commands(), clock_, 0, 2);
  api_.vkCmdWriteTimestamp(commands(), VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, clock_, 0);
  queue_work();
  api_.vkCmdWriteTimestamp(commands(), VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, clock_, 1);
  synchronize();
  uint64_t steps[2] = {};
  check(api_.vkGetQueryPoolResults(device_.handle, clock_, 0, 2, sizeof steps, steps, sizeof *steps,
                                   VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT),
        "vkGetQueryPoolResults");
  const uint64_t passed = (steps[1] - steps[0]) & (UINT64_MAX >> (64 - physical_.timestamp_bits));
  return static_cast<double>(passed) * physical_.timestamp_seconds;
}

std::unique_ptr<Graph> VulkanDriver::capture(const std::function<void()>& queue_work) {
  require_not_recorded("capture");
  Recorded recorded;
  recorded.commands = new_commands(VK_COMMAND_BUFFER_LEVEL_SECONDARY);
  recorded_ = &recorded;
  try {
    begin(recorded.commands, VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT);
    queue_work();
    check(api_.vkEndCommandBuffer(recorded.commands), "vkEndCommandBuffer");
  } catch (...) {
    recorded_ = nullptr;
    forget(recorded);
    throw;
  }
  recorded_ = nullptr;
  return std::make_unique<VulkanGraph>(*this, std::move(recorded));
}

void VulkanDriver::replay(VkCommandBuffer recorded) {
  require_not_recorded("replay");
  api_.vkCmdExecuteCommands(commands(), 1, &recorded);
}

void VulkanDriver::forget(const Recorded& recorded) {
  wait_quietly();
  api_.vkFreeCommandBuffers(device_.handle, pool_, 1, &recorded.commands);
  for (const ArgumentBlock& block : recorded.arguments) memory_.release(block.buffer.address);
}

}  // namespace

std::unique_ptr<portable::Driver> open_driver(int ordinal, PFN_vkGetInstanceProcAddr entry,
                                              FindShader shader) {
  return std::make_unique<VulkanDriver>(ordinal, entry, std::move(shader));
}

}  // namespace plumb::vulkan
