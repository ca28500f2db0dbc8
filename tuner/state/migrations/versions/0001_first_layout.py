"""First layout of the state database."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('findings',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('code', sa.Text(), nullable=False),
    sa.Column('verdict', sa.Text(), nullable=False),
    sa.Column('first_seen', sa.String(length=27), nullable=False),
    sa.Column('last_seen', sa.String(length=27), nullable=False),
    sa.Column('confidence', sa.Float(precision=53), nullable=True),
    sa.Column('simulated', sa.Boolean(), nullable=False),
    sa.Column('document', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index(op.f('ix_findings_code'), 'findings', ['code'], unique=False)
    op.create_index(op.f('ix_findings_last_seen'), 'findings', ['last_seen'], unique=False)
    op.create_table('journal',
    sa.Column('seq', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('at', sa.String(length=27), nullable=False),
    sa.Column('event', sa.Text(), nullable=False),
    sa.Column('group_id', sa.Text(), nullable=False),
    sa.Column('plan_id', sa.Text(), nullable=False),
    sa.Column('actor', sa.Text(), nullable=False),
    sa.Column('fence', sa.Integer(), nullable=True),
    sa.Column('body', sa.Text(), nullable=False),
    sa.Column('previous', sa.Text(), nullable=False),
    sa.Column('hash', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('seq')
    )
    op.create_index('ix_journal_group_id', 'journal', ['group_id'], unique=False)
    op.create_table('leases',
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('holder', sa.Text(), nullable=False),
    sa.Column('fence', sa.Integer(), nullable=False),
    sa.Column('until', sa.String(length=27), nullable=False),
    sa.PrimaryKeyConstraint('name')
    )
    op.create_table('outcomes',
    sa.Column('group_id', sa.Text(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('verdict', sa.Text(), nullable=False),
    sa.Column('predicted', sa.Float(precision=53), nullable=True),
    sa.Column('realised', sa.Float(precision=53), nullable=True),
    sa.Column('at', sa.String(length=27), nullable=False),
    sa.PrimaryKeyConstraint('group_id')
    )
    op.create_index(op.f('ix_outcomes_at'), 'outcomes', ['at'], unique=False)
    op.create_index(op.f('ix_outcomes_kind'), 'outcomes', ['kind'], unique=False)
    op.create_table('plans',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('made_at', sa.String(length=27), nullable=False),
    sa.Column('as_of', sa.String(length=27), nullable=False),
    sa.Column('simulated', sa.Boolean(), nullable=False),
    sa.Column('notes', sa.Text(), nullable=False),
    sa.Column('digest', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index(op.f('ix_plans_made_at'), 'plans', ['made_at'], unique=False)
    op.create_table('suppressions',
    sa.Column('id', sa.Integer(), autoincrement=True, nullable=False),
    sa.Column('code', sa.Text(), nullable=False),
    sa.Column('subject', sa.Text(), nullable=False),
    sa.Column('who', sa.Text(), nullable=False),
    sa.Column('why', sa.Text(), nullable=False),
    sa.Column('at', sa.String(length=27), nullable=False),
    sa.Column('until', sa.String(length=27), nullable=True),
    sa.Column('last_used', sa.String(length=27), nullable=True),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_table('drops',
    sa.Column('id', sa.Integer(), autoincrement=True, nullable=False),
    sa.Column('plan_id', sa.Text(), nullable=False),
    sa.Column('group_id', sa.Text(), nullable=False),
    sa.Column('guard', sa.Text(), nullable=False),
    sa.Column('action', sa.Text(), nullable=False),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(['plan_id'], ['plans.id']),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index(op.f('ix_drops_group_id'), 'drops', ['group_id'], unique=False)
    op.create_index(op.f('ix_drops_plan_id'), 'drops', ['plan_id'], unique=False)
    op.create_table('groups',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('plan_id', sa.Text(), nullable=False),
    sa.Column('position', sa.Integer(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('state', sa.Text(), nullable=False),
    sa.Column('decision', sa.Text(), nullable=False),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.Column('simulated', sa.Boolean(), nullable=False),
    sa.Column('made_at', sa.String(length=27), nullable=False),
    sa.Column('updated_at', sa.String(length=27), nullable=False),
    sa.Column('intent_at', sa.String(length=27), nullable=True),
    sa.Column('applied_at', sa.String(length=27), nullable=True),
    sa.Column('settled_at', sa.String(length=27), nullable=True),
    sa.Column('until', sa.String(length=27), nullable=True),
    sa.Column('restarts', sa.Integer(), nullable=False),
    sa.Column('evictions', sa.Integer(), nullable=False),
    sa.Column('signature', sa.Text(), nullable=False),
    sa.Column('evidence', sa.Text(), nullable=False),
    sa.Column('document', sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(['plan_id'], ['plans.id']),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index(op.f('ix_groups_intent_at'), 'groups', ['intent_at'], unique=False)
    op.create_index(op.f('ix_groups_plan_id'), 'groups', ['plan_id'], unique=False)
    op.create_index(op.f('ix_groups_state'), 'groups', ['state'], unique=False)
    op.create_table('approvals',
    sa.Column('id', sa.Integer(), autoincrement=True, nullable=False),
    sa.Column('group_id', sa.Text(), nullable=False),
    sa.Column('decision', sa.Text(), nullable=False),
    sa.Column('who', sa.Text(), nullable=False),
    sa.Column('why', sa.Text(), nullable=False),
    sa.Column('at', sa.String(length=27), nullable=False),
    sa.Column('until', sa.String(length=27), nullable=True),
    sa.ForeignKeyConstraint(['group_id'], ['groups.id']),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index(op.f('ix_approvals_group_id'), 'approvals', ['group_id'], unique=False)


def downgrade() -> None:
    for table in ("approvals", "groups", "drops", "suppressions", "plans", "outcomes", "leases", "journal", "findings"):
        op.drop_table(table)
