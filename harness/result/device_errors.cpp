#include "harness/result/device_errors.h"

#include <new>

#include "kernels/core/error.h"

namespace plumb::harness {

void settle_device_errors(Status& status, std::string& reason, const std::function<void()>& work) {
  const auto give_up = [&](Status why, const std::string& words) {
    status = why;
    reason = words;
  };
  try {
    work();
  } catch (const Unsupported& error) {
    give_up(Status::unsupported, error.what());
  } catch (const OutOfBounds& error) {
    give_up(Status::fail, error.what());
  } catch (const DeviceError& error) {
    give_up(Status::device_error, error.what());
  } catch (const std::bad_alloc&) {
    give_up(Status::device_error, "out of host memory");
  }
}

}  // namespace plumb::harness
