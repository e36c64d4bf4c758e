#include <map>

#include "coordinator/store/journal.h"

namespace tutti::coordinator {
namespace {

class MemoryJournal : public Journal {
 public:
  StatusOr<Rows> Load() override {
    Rows rows{.meta = meta_, .jobs = {}, .nodes = {}};
    for (const auto& [id, row] : jobs_) rows.jobs.push_back(row);
    for (const auto& [name, row] : nodes_) rows.nodes.push_back(row);
    return rows;
  }

  Status Commit(const Rows& rows) override {
    meta_ = rows.meta;
    for (const v1::JobRow& row : rows.jobs) jobs_[row.job().id()] = row;
    for (const v1::NodeRow& row : rows.nodes) nodes_[row.node().name()] = row;
    return OkStatus();
  }

 private:
  v1::MetaRow meta_;
  std::map<std::string, v1::JobRow> jobs_;
  std::map<std::string, v1::NodeRow> nodes_;
};

}  // namespace

std::unique_ptr<Journal> NewMemoryJournal() { return std::make_unique<MemoryJournal>(); }

}  // namespace tutti::coordinator
