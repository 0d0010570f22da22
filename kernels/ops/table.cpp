#include "kernels/ops/table.h"

#include "kernels/ops/table_rows.h"

namespace plumb {

const OpRow& row_of(OpId op) { return kTable[static_cast<size_t>(op)]; }

}  // namespace plumb
