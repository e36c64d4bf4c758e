// checkpoint_test_writer DIRECTORY GENERATION LAST_STEP: two ranks of the toy job in one process, resuming and saving a
// state of 50 MB at every step until LAST_STEP. The crash test kills it at random points.
#include <cstdlib>

#include "tests/engine/checkpoint/crash_state.h"

int main(int argc, char** argv) {
  using namespace tutti;
  TUTTI_CHECK(argc == 4);
  const CheckpointStore store = CheckpointStore::Open(argv[1]).value();
  const JobIdentity self{"job-a", Generation(std::atoll(argv[2]))};
  v1::CheckpointPolicy policy;
  policy.set_resume(v1::RESUME_MODE_AUTO);
  std::vector<std::string> notices;
  const auto start = store.FindStart(policy, self, &notices).value();
  const int64_t base = start ? start->step.value() : 0;
  tutti::testing::ToyGeneration job(argv[1], self.generation.value(), 2,
                                    {.tensors = tutti::testing::CrashState(), .keep = 2, .base = base});
  for (int64_t step = base + 1; step <= std::atoll(argv[3]); ++step) TUTTI_CHECK_OK(job.Save(step).status);
  return 0;
}
