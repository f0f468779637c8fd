"""The names of `predict.tables` under their former module, until nothing imports it."""

from ..predict.tables import AnswerTable, TableWriter, check_table_name, table_stream

__all__ = ["AnswerTable", "TableWriter", "check_table_name", "table_stream"]
