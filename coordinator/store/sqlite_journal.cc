#include <sqlite3.h>

#include <string_view>

#include "base/files.h"
#include "coordinator/store/journal.h"

namespace tutti::coordinator {
namespace {

constexpr int kSchemaVersion = 1;
constexpr int kApplicationId = 0x7475'7474;  // "tutt"

struct CloseDatabase {
  void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
};
struct CloseStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;
using Statement = std::unique_ptr<sqlite3_stmt, CloseStatement>;

Status SqliteError(sqlite3* db, std::string_view what) {
  const int code = sqlite3_extended_errcode(db);
  const std::string message = fmt::format("journal: {}: {}", what, sqlite3_errmsg(db));
  switch (code & 0xff) {
    case SQLITE_FULL:
      return ResourceExhausted("{}", message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return DataLoss("{}", message);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return FailedPrecondition("{}", message);
    default:
      return Internal("{} (sqlite code {})", message, code);
  }
}

class SqliteJournal : public Journal {
 public:
  explicit SqliteJournal(Database db) : db_(std::move(db)) {}

  Status Setup(int64_t max_pages) {
    TUTTI_RETURN_IF_ERROR(Run("PRAGMA locking_mode=EXCLUSIVE"));
    TUTTI_ASSIGN_OR_RETURN(const std::string mode, Ask("PRAGMA journal_mode=WAL"));
    if (mode != "wal") return FailedPrecondition("journal: the file system gives journal mode '{}', need 'wal'", mode);
    TUTTI_RETURN_IF_ERROR(Run("PRAGMA synchronous=FULL"));
    TUTTI_ASSIGN_OR_RETURN(const std::string check, Ask("PRAGMA quick_check(1)"));
    if (check != "ok") return DataLoss("journal: {}", check);
    TUTTI_ASSIGN_OR_RETURN(const std::string version, Ask("PRAGMA user_version"));
    if (version == "0") {
      TUTTI_RETURN_IF_ERROR(
          Run(fmt::format("BEGIN IMMEDIATE;"
                          "CREATE TABLE meta(key INTEGER PRIMARY KEY CHECK(key = 1), row BLOB NOT NULL) STRICT;"
                          "CREATE TABLE job(id TEXT PRIMARY KEY, row BLOB NOT NULL) STRICT;"
                          "CREATE TABLE node(name TEXT PRIMARY KEY, row BLOB NOT NULL) STRICT;"
                          "PRAGMA application_id={}; PRAGMA user_version={}; COMMIT",
                          kApplicationId, kSchemaVersion)));
    } else if (version != fmt::format("{}", kSchemaVersion)) {
      return FailedPrecondition("journal: schema version {}, this program knows {}: use the program that wrote it",
                                version, kSchemaVersion);
    }
    if (max_pages > 0) TUTTI_RETURN_IF_ERROR(Run(fmt::format("PRAGMA max_page_count={}", max_pages)));
    TUTTI_RETURN_IF_ERROR(Prepare("INSERT OR REPLACE INTO meta VALUES(1, ?1)", &put_meta_));
    TUTTI_RETURN_IF_ERROR(Prepare("INSERT OR REPLACE INTO job VALUES(?2, ?1)", &put_job_));
    return Prepare("INSERT OR REPLACE INTO node VALUES(?2, ?1)", &put_node_);
  }

  StatusOr<Rows> Load() override {
    Rows rows;
    std::vector<v1::MetaRow> meta;
    TUTTI_RETURN_IF_ERROR(ReadTable("SELECT row FROM meta", &meta));
    TUTTI_RETURN_IF_ERROR(ReadTable("SELECT row FROM job ORDER BY id", &rows.jobs));
    TUTTI_RETURN_IF_ERROR(ReadTable("SELECT row FROM node ORDER BY name", &rows.nodes));
    if (!meta.empty()) rows.meta = meta.front();
    return rows;
  }

  Status Commit(const Rows& rows) override {
    TUTTI_RETURN_IF_ERROR(Run("BEGIN IMMEDIATE"));
    Status status = PutAll(rows);
    if (status.ok()) status = Run("COMMIT");
    if (!status.ok() && sqlite3_get_autocommit(db_.get()) == 0) TUTTI_RETURN_IF_ERROR(Run("ROLLBACK"));
    return status;
  }

 private:
  Status PutAll(const Rows& rows) {
    TUTTI_RETURN_IF_ERROR(Put(put_meta_.get(), "", rows.meta.SerializeAsString()));
    for (const v1::JobRow& row : rows.jobs) {
      TUTTI_RETURN_IF_ERROR(Put(put_job_.get(), row.job().id(), row.SerializeAsString()));
    }
    for (const v1::NodeRow& row : rows.nodes) {
      TUTTI_RETURN_IF_ERROR(Put(put_node_.get(), row.node().name(), row.SerializeAsString()));
    }
    return OkStatus();
  }

  Status Put(sqlite3_stmt* statement, const std::string& key, const std::string& row) {
    sqlite3_bind_blob64(statement, 1, row.data(), row.size(), SQLITE_STATIC);
    if (!key.empty()) sqlite3_bind_text64(statement, 2, key.data(), key.size(), SQLITE_STATIC, SQLITE_UTF8);
    const bool done = sqlite3_step(statement) == SQLITE_DONE;
    const Status status = done ? OkStatus() : SqliteError(db_.get(), "write a row");
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return status;
  }

  template <typename Row>
  Status ReadTable(const char* sql, std::vector<Row>* out) {
    Statement statement;
    TUTTI_RETURN_IF_ERROR(Prepare(sql, &statement));
    int code;
    while ((code = sqlite3_step(statement.get())) == SQLITE_ROW) {
      Row& row = out->emplace_back();
      if (!row.ParseFromArray(sqlite3_column_blob(statement.get(), 0), sqlite3_column_bytes(statement.get(), 0))) {
        return DataLoss("journal: row {} of '{}' cannot be read", out->size(), sql);
      }
    }
    return code == SQLITE_DONE ? OkStatus() : SqliteError(db_.get(), sql);
  }

  Status Prepare(const char* sql, Statement* out) {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(db_.get(), sql, -1, &statement, nullptr) != SQLITE_OK) return SqliteError(db_.get(), sql);
    out->reset(statement);
    return OkStatus();
  }

  Status Run(const std::string& sql) {
    return sqlite3_exec(db_.get(), sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK
               ? OkStatus()
               : SqliteError(db_.get(), sql.substr(0, 40));
  }

  StatusOr<std::string> Ask(const char* sql) {
    Statement statement;
    TUTTI_RETURN_IF_ERROR(Prepare(sql, &statement));
    if (sqlite3_step(statement.get()) != SQLITE_ROW) return SqliteError(db_.get(), sql);
    return std::string(reinterpret_cast<const char*>(sqlite3_column_text(statement.get(), 0)));
  }

  Database db_;  // declared before the statements, which must be dropped first
  Statement put_meta_, put_job_, put_node_;
};

}  // namespace

StatusOr<std::unique_ptr<Journal>> OpenSqliteJournal(const std::string& directory, int64_t max_pages) {
  const std::string path = JoinPath(directory, "journal.db");
  sqlite3* raw = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(path.c_str(), &raw, flags, nullptr);
  Database db(raw);
  if (code != SQLITE_OK) return Annotate(SqliteError(raw, "open"), path);
  auto journal = std::make_unique<SqliteJournal>(std::move(db));
  TUTTI_RETURN_IF_ERROR(Annotate(journal->Setup(max_pages), path));
  return journal;
}

}  // namespace tutti::coordinator
