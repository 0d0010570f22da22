#include "harness/run/journal.h"

#include <sys/stat.h>

#include "harness/report/results_json.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/file_size_limit.h"
#include "tests/harness/sample_results.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

const Journal::Facts kFacts = {{"program", "0.1.0 abc"}, {"device cpu", "cpu: 2 cores"}};

CheckpointResult result(int number) {
  CheckpointResult out = number % 2 == 0 ? passing() : failing();
  out.checkpoint = text("model.layers.", number, "#0");
  return out;
}

// A journal of `count` results; its length after the header and after each of them.
std::vector<uintmax_t> written(const fs::path& path, int count) {
  Journal journal(path, kFacts, "then");
  std::vector<uintmax_t> lengths = {fs::file_size(path)};
  for (int i = 0; i < count; ++i) {
    journal.append(result(i), 0.5 * (i + 1));
    lengths.push_back(fs::file_size(path));
  }
  return lengths;
}

void check_results(Journal& journal, size_t count) {
  const std::vector<CheckpointResult> found = journal.take();
  REQUIRE(found.size() == count);
  for (size_t i = 0; i < count; ++i) {
    CHECK(checkpoint_json(found[i]) == checkpoint_json(result(static_cast<int>(i))));
  }
  CHECK(journal.seconds() == 0.5 * static_cast<double>(count));
}

TEST_CASE("a journal gives back what was written, and continues") {
  const TemporaryFolder root;
  written(root / "j", 3);
  {
    Journal journal(root / "j", kFacts, "now");
    CHECK(journal.started() == "then");
    CHECK(journal.dropped() == 0);
    check_results(journal, 3);
    journal.append(result(3), 2);
  }
  Journal journal(root / "j", kFacts, "now");
  check_results(journal, 4);
}

TEST_CASE("a journal that ends at any byte has every result that is whole, and continues") {
  const TemporaryFolder root;
  const std::vector<uintmax_t> lengths = written(root / "whole", 3);
  const std::string bytes = read_bytes(root / "whole");
  REQUIRE(bytes.size() == lengths.back());
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    CAPTURE(cut);
    write_bytes(root / "j", bytes.substr(0, cut));
    size_t whole = 0;  // the header, and results
    while (whole < lengths.size() && lengths[whole] <= cut) ++whole;
    const uintmax_t kept = whole == 0 ? 0 : lengths[whole - 1];
    Journal journal(root / "j", kFacts, "then");
    REQUIRE(static_cast<uintmax_t>(journal.dropped()) == cut - kept);
    const size_t found = whole == 0 ? 0 : whole - 1;
    check_results(journal, found);
    for (size_t i = found; i < 3; ++i) {
      journal.append(result(static_cast<int>(i)), 0.5 * static_cast<double>(i + 1));
    }
    REQUIRE((read_bytes(root / "j") == bytes));
  }
}

TEST_CASE("a record with a wrong byte ends the journal") {
  const TemporaryFolder root;
  const std::vector<uintmax_t> lengths = written(root / "j", 3);
  std::string bytes = read_bytes(root / "j");
  for (uintmax_t at = lengths[1]; at < lengths[2]; at += 7) {
    CAPTURE(at);
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    write_bytes(root / "j", damaged);
    Journal journal(root / "j", kFacts, "then");
    check_results(journal, 1);
    CHECK(static_cast<uintmax_t>(journal.dropped()) == lengths[3] - lengths[1]);
  }
}

TEST_CASE("another run's journal is refused with what differs, and stays as it is") {
  const TemporaryFolder root;
  written(root / "j", 1);
  const std::string bytes = read_bytes(root / "j");
  const auto error_with = [&](const Journal::Facts& facts) {
    return error_text<UsageError>([&] { Journal(root / "j", facts, "now"); });
  };
  CHECK(contains(error_with({{"program", "0.2.0 abc"}, {"device cpu", "cpu: 2 cores"}}),
                 "/j: is of another run: program was \"0.1.0 abc\", is \"0.2.0 abc\"; repeat"));
  CHECK(contains(error_with({{"device cpu", "cpu: 4 cores"}, {"block", "sdpa"}}),
                 "program was \"0.1.0 abc\", is not there; device cpu was \"cpu: 2 cores\", is "
                 "\"cpu: 4 cores\"; block was not there, is \"sdpa\"; repeat"));
  const std::string many =
      error_with({{"a", std::string(99, 'x')}, {"b", ""}, {"c", ""}, {"d", ""}});
  CHECK(contains(many, "a was not there, is \"xxxxxxxxxxxxx...; b was"));
  CHECK(contains(many, "and 2 more; repeat"));
  CHECK(read_bytes(root / "j") == bytes);
  const Journal::Facts hostile = {{"recording " + kHostile, kHostile}};
  Journal(root / "hostile", hostile, "then").append(result(0), 0.5);
  Journal again(root / "hostile", hostile, "now");
  check_results(again, 1);
}

TEST_CASE("what is no journal is refused and stays as it is") {
  const TemporaryFolder root;
  write_bytes(root / "j", "my thesis");
  const auto error_of = [&](const fs::path& path) {
    return error_text<UsageError>([&] { Journal(path, kFacts, "now"); });
  };
  CHECK(contains(error_of(root / "j"), "/j: is not a journal of this harness; name another file"));
  CHECK(read_bytes(root / "j") == "my thesis");
  CHECK(contains(error_of(root / "missing/j"), "cannot be opened: No such file"));
  CHECK(contains(error_of(root.path()), "cannot be opened: Is a directory"));
  REQUIRE(::mkfifo((root / "pipe").c_str(), 0600) == 0);
  CHECK(contains(error_of(root / "pipe"), "is not a regular file"));
  Journal journal(root / "mine", kFacts, "now");
  CHECK(contains(error_of(root / "mine"), "another run is writing it"));
}

TEST_CASE("a disk that fills up leaves the journal as it was before that record") {
  const TemporaryFolder root;
  const std::vector<uintmax_t> lengths = written(root / "whole", 2);
  const std::string bytes = read_bytes(root / "whole");
  for (uintmax_t room = 0; room < bytes.size(); room += 61) {
    CAPTURE(room);
    fs::remove(root / "j");
    const std::string error = error_under_limit(room, [&] {
      Journal journal(root / "j", kFacts, "then");
      for (int i = 0; i < 2; ++i) journal.append(result(i), 0.5 * (i + 1));
    });
    CHECK(error.starts_with("[--journal] "));  // of a UsageError: another would say so first
    CHECK(contains(error, text("/j: cannot be written at byte ", room, ": File too large")));
    const uintmax_t left = fs::file_size(root / "j");
    CHECK((left == 0 || left == lengths[0] || left == lengths[1]));
    CHECK((bytes.substr(0, left) == read_bytes(root / "j")));
  }
}

}  // namespace
}  // namespace plumb::harness
