// Every device of this build, as `harness devices` names them.
#include <iostream>

#include "kernels/core/device.h"

int main() {
  for (const plumb::DeviceStatus& status : plumb::list_devices()) {
    std::cout << status.name << (status.usable ? " usable " : " not usable ") << status.text
              << "\n";
  }
}
